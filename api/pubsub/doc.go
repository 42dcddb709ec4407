// Package pubsub is the service of topics, independent of the protocol. It publishes messages in the envelope of Dapr.
//
// It owns the envelope and the public errors of topics. It never knows a protocol of clients or a type of broker. It
// starts no goroutines.
package pubsub
