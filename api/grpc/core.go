package grpc

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/admission"
	"github.com/quorate/quorate/internal/connlimit"
)

// core has what the methods of all building blocks need: the memory budget for answers, time limits, and a context
// that ends with the server.
type core struct {
	limit   int64             // bytes of one message
	timeout time.Duration     // of one service call and of the arrival of its message
	stall   time.Duration     // after which a client that takes nothing is disconnected
	answers *admission.Budget // nil = no bound

	life    context.Context // ends when Close is called
	end     context.CancelFunc
	running sync.WaitGroup // Close waits for it
}

func newCore(c Config) *core {
	out := &core{limit: messageLimit(c.MaxBodySize), timeout: c.RequestTimeout, answers: c.Answers,
		stall: cmp.Or(c.WriteStall, connlimit.DefaultWriteStall)}
	if out.timeout <= 0 {
		out.timeout = DefaultRequestTimeout
	}
	out.life, out.end = context.WithCancel(context.Background())
	return out
}

func messageLimit(size int64) int64 {
	switch {
	case size == 0:
		return DefaultMaxBodySize
	case size < 0:
		return math.MaxInt32
	}
	return min(size, math.MaxInt32)
}
