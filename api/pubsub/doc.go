// Package pubsub is the service of topics, independent of the protocol: it publishes messages in the envelope of Dapr,
// and delivers the messages of subscriptions to the application.
//
// It owns the envelope, the public errors of topics, routing rules, and the order in which a delivery is decided. It
// never knows a protocol of clients or a type of broker. A Subscriber has one goroutine for each subscription and one
// for each sequence of messages that the application handles. They end in Close.
package pubsub
