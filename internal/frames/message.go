package frames

// message is the message of a protocol whose messages have a header of fixed size.
type message struct {
	header []byte // the part that was received
	begun  bool   // the header is complete
	left   int64  // bytes that follow the header and are missing
	held   int    // if holds: bytes of the message that the client has not seen
	holds  bool   // the client sees the message only when it is complete
}

// take consumes the bytes at the start of p that belong to the current message, and returns their number. It consumes
// either bytes of the header, which has the given size, or bytes after the header. If the header is now complete,
// begins is true, and the caller must set the fields left and holds.
func (m *message) take(p []byte, size int) (n int, begins bool) {
	if m.begun {
		n = int(min(m.left, int64(len(p))))
		m.left -= int64(n)
	} else {
		n = min(size-len(m.header), len(p))
		m.header = append(m.header, p[:n]...)
		m.begun = len(m.header) == size
		begins = m.begun
	}
	if m.holds {
		m.held += n
	}
	return n, begins
}

// hold withholds the message from the client until the message is complete. n is the number of header bytes that the
// client has not received.
func (m *message) hold(n int) {
	if !m.holds {
		m.holds, m.held = true, n
	}
}

// complete reports whether the message is complete.
func (m *message) complete() bool { return m.begun && m.left == 0 }

// reset prepares for the next message.
func (m *message) reset() { *m = message{header: m.header[:0]} }
