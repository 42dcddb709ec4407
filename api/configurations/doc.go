// Package configurations serves the configuration API of an application. It reads and writes configuration items, and
// notifies the application when items change.
//
// The package owns the configuration subscriptions of this node. A gRPC client receives changes over a stream. An
// application that has subscribed over HTTP is called for each change, until a call succeeds. The package uses stores
// only through the interfaces of component/configuration.
//
// An HTTP subscription has two goroutines, and one more for each call in progress. Close waits for them.
package configurations
