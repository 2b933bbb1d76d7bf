"""Sums of few products over neighbouring points: depthwise convolutions, filters."""
