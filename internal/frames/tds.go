package frames

import (
	"encoding/binary"
	"strconv"
)

// The framing of TDS, the protocol of SQL Server.
const (
	tdsHeader = 8 // bytes of the header of a packet
	tdsAnswer = 4 // the type of the packets of a server
)

// TDS checks the messages that SQL Server sends after the prelogin and after the TLS handshake, if there is one.
//
// It holds each message until it is complete, and then checks that the client library can read the whole message. The
// library itself would allocate any length that a message announces, and continue with the next packet after a value
// that it cannot read. TDS allows only the tokens, types and sizes that the statements of the component state.sqlserver
// cause.
type TDS struct {
	longest int64 // maximum bytes of a message
	sspi    bool
	whole   int // bytes of the complete packets of the message that is held
}

// NewTDS returns a checker for one connection. It allows values of up to longest bytes. sspi is true if the sign-in
// may exchange tokens of NTLM.
func NewTDS(longest int64, sspi bool) *TDS {
	// The text of a value has two bytes for each character. A value that is not UTF-8 may be stored as base64.
	return &TDS{longest: 3*longest + overhead, sspi: sspi}
}

// Sent implements Checker.
func (c *TDS) Sent([]byte) {}

// Check implements Checker.
func (c *TDS) Check(unseen []byte, _ int) (int, error) {
	message := unseen
	for {
		rest := message[c.whole:]
		if len(rest) < tdsHeader {
			return len(message), nil
		}
		size := int(binary.BigEndian.Uint16(rest[2:]))
		switch {
		case rest[0] != tdsAnswer || size <= tdsHeader:
			return 0, malformed("SQL Server sent a packet that is no answer")
		case int64(c.whole+size) > c.longest:
			return 0, tooLarge("the answer of SQL Server has more than " + strconv.FormatInt(c.longest, 10) + " bytes")
		case len(rest) < size:
			return len(message), nil
		}
		c.whole += size
		if rest[1] == 0 { // more packets belong to the message
			continue
		}
		m := tdsTokens{rest: message[:c.whole], size: int64(c.whole), sspi: c.sspi}
		if err := m.check(); err != nil {
			return 0, err
		}
		message, c.whole = message[c.whole:], 0
	}
}
