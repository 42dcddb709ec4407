// Package pubsub publishes messages and delivers the messages of subscriptions, independently of the protocol of the
// client and the type of broker. Published messages are wrapped in Dapr's CloudEvent envelope.
//
// It owns the envelope, the public errors of topics and the routing rules. It decides whether a delivered message is
// acknowledged, delivered again or moved to the dead-letter topic. A Subscriber has one goroutine for each
// subscription, and one for each sequence of messages that the application is handling. Subscriber.Close waits for
// them.
package pubsub
