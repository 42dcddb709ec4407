package watches

import (
	"errors"
	"io"
	"syscall"
)

// rawWrite writes to a connection as much as can be written without waiting.
type rawWrite struct {
	call func(fd uintptr) bool // the method write; made once, to save allocations
	b    []byte
	n    int
	err  error
}

func (r *rawWrite) write(fd uintptr) bool {
	for {
		r.n, r.err = syscall.Write(int(fd), r.b)
		if r.err != syscall.EINTR { //nolint:errorlint // of a system call
			return true
		}
	}
}

// try writes b without waiting, and returns the number of written bytes. If the send buffer of the connection is full,
// this number is less than len(b) and the error is nil.
func (r *rawWrite) try(c syscall.RawConn, b []byte) (int, error) {
	r.b, r.n, r.err = b, 0, nil
	err := c.Write(r.call)
	r.b = nil
	if err == nil {
		err = r.err
	}
	if errors.Is(err, syscall.EAGAIN) {
		err = nil
	}
	return max(r.n, 0), err
}

// rawRead checks whether the other side has closed a connection.
type rawRead struct {
	call func(fd uintptr) bool // the method read; made once, to save allocations
	b    [16 << 10]byte
	n    int
	err  error
}

func (r *rawRead) read(fd uintptr) bool {
	for {
		r.n, r.err = syscall.Read(int(fd), r.b[:])
		if r.err != syscall.EINTR { //nolint:errorlint // of a system call
			return true
		}
	}
}

// look checks, without waiting, whether the client has closed the connection, and returns an error if it has.
// Otherwise, look discards data that the client has sent, and returns the number of discarded bytes. It discards at
// most 16 KiB, so that a client that never stops sending cannot delay the caller.
func (r *rawRead) look(c syscall.RawConn) (int, error) {
	r.n, r.err = 0, nil
	if err := c.Read(r.call); err != nil {
		return 0, err
	}
	switch {
	case errors.Is(r.err, syscall.EAGAIN):
		return 0, nil
	case r.err == nil && r.n == 0:
		return 0, io.EOF
	}
	return max(r.n, 0), r.err
}
