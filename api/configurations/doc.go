// Package configurations serves the configuration API of an application: it reads and writes items, and delivers
// their changes.
//
// It owns the subscriptions of the applications of this node. A gRPC client takes the changes of its stream. An
// application that subscribed over HTTP is called, and each change is sent again until the application has taken it.
// The stores hide behind the contract of component/configuration. A subscription of an HTTP application has two
// goroutines, and one for each call under way. Close waits for them.
package configurations
