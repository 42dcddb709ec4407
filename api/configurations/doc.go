// Package configurations serves the configuration API of an application. It reads and writes configuration items, and
// notifies the application when items change.
//
// The package owns the configuration subscriptions of this node. A gRPC client receives changes over a stream. For an
// application that has subscribed over HTTP, the node calls the application for each change, and repeats the call until
// it succeeds. The package uses stores only through the interfaces of component/configuration. An HTTP subscription has
// two goroutines, and one more for each call in progress. Close waits for them.
package configurations
