// Package configurations serves the configuration API of an application: it reads and writes items, and delivers their
// changes.
//
// It owns the subscriptions of the applications of this node. A gRPC client receives the changes over a stream. An
// application that subscribed over HTTP receives each change in a call, which is repeated until it succeeds. The
// package uses the stores only through the contract of component/configuration. A subscription over HTTP has two
// goroutines, and one for each call in progress. Close waits for them.
package configurations
