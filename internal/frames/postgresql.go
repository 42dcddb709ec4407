package frames

import (
	"encoding/binary"
	"strconv"
)

// The bounds of messages of PostgreSQL, in addition to those of NewPostgreSQL.
const (
	pgHeader    = 5         // bytes: the type and the length
	maxOther    = 1 << 20   // bytes of a message other than a row
	maxStatuses = 256 << 10 // bytes of all ParameterStatus messages of a connection, which pgx keeps
	maxNotices  = 1 << 20   // bytes of all notices since the last request
)

// PostgreSQL checks the messages of a PostgreSQL server. If the connection uses TLS, these are the decrypted messages.
//
// It limits the size of each message, and the total size of all messages since the last request. It holds large
// messages until they are complete. Notifications are an error unless the connection subscribes to them, because pgx
// keeps unread notifications in memory.
type PostgreSQL struct {
	longest int64 // maximum bytes of a value
	listens bool

	message  message
	waits    bool  // ReadyForQuery has not arrived after the last request
	total    int64 // bytes received since the last request; with listens, also reset while no answer is due
	notices  int64 // bytes of notices, reset together with total
	statuses int64 // bytes of all ParameterStatus messages
}

// NewPostgreSQL returns a checker for one connection. It allows values of up to longest bytes. listens is true for a
// connection that subscribes to notifications.
func NewPostgreSQL(longest int64, listens bool) *PostgreSQL {
	return &PostgreSQL{longest: longest, listens: listens}
}

// Sent implements Checker.
func (c *PostgreSQL) Sent([]byte) {
	c.waits = true
	if len(c.message.header) == 0 {
		c.total, c.notices = 0, 0
	}
}

// Check implements Checker.
func (c *PostgreSQL) Check(unseen []byte, fresh int) (int, error) {
	for p := unseen[len(unseen)-fresh:]; len(p) > 0; {
		n, begins := c.message.take(p, pgHeader)
		p = p[n:]
		if c.total += int64(n); c.total > c.longest+overhead && (c.waits || !c.listens) {
			return 0, tooLarge("the answer of PostgreSQL has more than " + strconv.FormatInt(c.longest+overhead, 10) +
				" bytes")
		}
		if begins {
			if err := c.begin(n); err != nil {
				return 0, err
			}
		}
		if c.message.complete() {
			c.end()
		}
	}
	return c.message.held, nil
}

// begin checks the header of a message, which is now complete. The header may have arrived in several parts. n is the
// number of bytes in the last part.
func (c *PostgreSQL) begin(n int) error {
	kind := c.message.header[0]
	size := int64(int32(binary.BigEndian.Uint32(c.message.header[1:]))) - 4 //nolint:gosec // as the protocol has it
	longest := int64(maxOther)
	if kind == 'D' {
		longest = c.longest + overhead
	}
	switch {
	case size < 0:
		return malformed("PostgreSQL sent a message with a negative length")
	case size > longest:
		return tooLarge("a message of PostgreSQL has " + strconv.FormatInt(size, 10) + " bytes; the longest that is " +
			"read has " + strconv.FormatInt(longest, 10))
	case kind == 'A' && !c.listens:
		return malformed("PostgreSQL sent a notification without a subscription")
	}
	switch kind {
	case 'S':
		c.statuses += size
	case 'N':
		c.notices += size
	}
	if c.statuses > maxStatuses || c.notices > maxNotices {
		return tooLarge("PostgreSQL sent too many parameters or notices")
	}
	if c.message.left = size; size > freeBytes {
		c.message.hold(n)
	}
	return nil
}

// end handles the end of a message.
func (c *PostgreSQL) end() {
	if c.message.header[0] == 'Z' { // ReadyForQuery
		c.waits = false
	}
	if !c.waits && c.listens {
		c.total, c.notices = 0, 0
	}
	c.message.reset()
}
