// Package browsertest tests the web console of the real program in headless Chromium, on a cluster of three nodes. It
// also tests watches over an EventSource. Run it with make console-test, which needs bin/quorate and Chromium. If
// PICTURES=docs/images is set, it also takes the screenshots of the documentation. It owns the nodes and the browser
// that it has started.
package browsertest
