"""Forms of the showpieces in other libraries, written from their papers: functions of the inputs in their order."""
