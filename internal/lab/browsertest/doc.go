// Package browsertest tests the web console of the real program in headless Chromium, on a cluster of three nodes. Run
// it with make console-test; it needs bin/quorate and Chromium. With PICTURES=docs/images it also takes the pictures of
// the documentation.
package browsertest
