package frames

// message is the message of a protocol whose messages have a header of fixed size.
type message struct {
	header []byte // as far as it was received
	begun  bool   // the header is complete
	left   int64  // bytes that follow the header and are missing
	held   int    // bytes of the message that the client has not seen, if it is held
	holds  bool   // until it is complete
}

// take takes the next part of p, which belongs to the header of the given size or to what follows it. It returns the
// number of bytes, and whether the header is complete now. Then the caller sets left and holds.
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

// hold begins to hold the message. n is the number of bytes of the header that the client has not seen.
func (m *message) hold(n int) {
	if !m.holds {
		m.holds, m.held = true, n
	}
}

// complete reports whether the message is complete.
func (m *message) complete() bool { return m.begun && m.left == 0 }

// reset prepares for the next message.
func (m *message) reset() { *m = message{header: m.header[:0]} }
