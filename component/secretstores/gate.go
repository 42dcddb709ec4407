package secretstores

import (
	"context"
	"encoding/base64"
	"sync/atomic"
	"unicode/utf8"

	"github.com/quorate/quorate/internal/fault"
)

// Gate admits calls to a store until the store is closed. The zero value is open. It is safe for concurrent use.
type Gate struct {
	closed atomic.Bool
}

// Enter returns nil if a call may begin. It returns an error if the store is closed, or if ctx has ended.
func (g *Gate) Enter(ctx context.Context) error {
	switch {
	case g.closed.Load():
		return fault.New(fault.Unavailable, "secretstores.Enter", "the secret store is closed")
	case ctx.Err() != nil:
		return &fault.Error{Code: fault.Timeout, Op: "secretstores.Enter",
			Msg: "the request ended before the secret store was called", Err: ctx.Err()}
	}
	return nil
}

// Close closes the gate. It returns true if the gate was open.
func (g *Gate) Close() bool { return !g.closed.Swap(true) }

// Text returns a secret value as text. If the value is not valid UTF-8, Text encodes it as base64, because a JSON
// string cannot contain arbitrary bytes.
func Text(value []byte) string {
	if utf8.Valid(value) {
		return string(value)
	}
	return base64.StdEncoding.EncodeToString(value)
}

// Absent returns the error for a secret that does not exist. msg is the reason.
func Absent(name, msg string) error {
	return &fault.Error{Code: fault.NotFound, Op: "secretstores.Get", Msg: msg, Key: name}
}
