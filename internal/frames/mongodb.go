package frames

import (
	"bytes"
	"encoding/binary"
	"strconv"
)

// The bounds of messages of MongoDB. The driver has no fixed limit for messages: it accepts the size that the server
// announces.
const (
	mongoHeader   = 16         // bytes
	kindAt        = 12         // position of the type in the header
	maxMongo      = 48_000_000 // bytes of a message, the limit of MongoDB itself
	signIns       = 4          // the first messages of a connection, which may belong to the authentication
	maxIterations = 10_000_000 // iterations of SCRAM that the driver may have to compute
	opReply       = 1
	opMessage     = 2013
)

// MongoDB checks the messages of a MongoDB server. If the connection uses TLS, these are the decrypted messages.
//
// It limits the size of each message, and holds large messages until they are complete. Compressed messages are an
// error, because the driver allocates the length that they announce. An authentication with too many iterations of
// SCRAM is also an error, because the driver would calculate for hours.
type MongoDB struct {
	message message
	count   int // messages so far
}

// NewMongoDB returns a checker for one connection.
func NewMongoDB() *MongoDB { return &MongoDB{} }

// Sent implements Checker.
func (c *MongoDB) Sent([]byte) {}

// Check implements Checker.
func (c *MongoDB) Check(unseen []byte, fresh int) (int, error) {
	for at := len(unseen) - fresh; at < len(unseen); {
		c.message.holds = c.message.holds || c.count < signIns
		n, begins := c.message.take(unseen[at:], mongoHeader)
		at += n
		if begins {
			if err := c.begin(n); err != nil {
				return 0, err
			}
		}
		if !c.message.complete() {
			continue
		}
		if c.count < signIns {
			if err := signIn(unseen[at-c.message.held : at]); err != nil {
				return 0, err
			}
		}
		c.count++
		c.message.reset()
	}
	return c.message.held, nil
}

// begin checks the header of a message, which is now complete. The header may have arrived in several parts. n is the
// number of bytes in the last part.
func (c *MongoDB) begin(n int) error {
	size := int64(int32(binary.LittleEndian.Uint32(c.message.header)))   //nolint:gosec // as the protocol has it
	kind := int32(binary.LittleEndian.Uint32(c.message.header[kindAt:])) //nolint:gosec // as the protocol has it
	switch {
	case size < mongoHeader:
		return malformed("MongoDB sent a message that is shorter than its header")
	case size > maxMongo:
		return tooLarge("a message of MongoDB has " + strconv.FormatInt(size, 10) + " bytes; the longest that is " +
			"read has " + strconv.Itoa(maxMongo))
	case kind != opReply && kind != opMessage:
		return malformed("MongoDB sent a message of the unexpected type " + strconv.Itoa(int(kind)))
	}
	if c.message.left = size - mongoHeader; size > freeBytes {
		c.message.hold(n)
	}
	return nil
}

// signIn checks a message that may belong to an authentication with SCRAM. Such a message contains a text of the form
// "r=...,s=...,i=iterations". signIn returns an error if the number of iterations exceeds maxIterations.
func signIn(message []byte) error {
	for {
		_, rest, found := bytes.Cut(message, []byte(",i="))
		if !found {
			return nil
		}
		message = rest
		digits := rest[:len(rest)-len(bytes.TrimLeft(rest, "0123456789"))]
		n, err := strconv.ParseInt(string(digits), 10, 64)
		if len(digits) > 0 && (err != nil || n > maxIterations) {
			return malformed("MongoDB requests more than " + strconv.Itoa(maxIterations) + " iterations of SCRAM")
		}
	}
}
