"""Steps of exported modules of WebAssembly in a browser, beside TensorFlow.js."""
