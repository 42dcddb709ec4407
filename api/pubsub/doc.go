// Package pubsub is the service of topics, independent of the protocol. It publishes messages in Dapr's envelope, and
// delivers the messages of subscriptions to the application.
//
// It owns the envelope, the public errors of topics, the routing rules, and the order of the decisions about a
// delivery. It does not depend on the protocol of a client or on a type of broker. A Subscriber has one goroutine for
// each subscription, and one for each sequence of messages that the application handles. Close waits for them.
package pubsub
