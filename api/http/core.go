package http

import (
	"sync"
	"time"

	"github.com/quorate/quorate/internal/admission"
)

// core has what the handlers of all building blocks need: the limits and memory budgets of bodies, and the request
// timeout.
type core struct {
	requests  *admission.Budget // nil = no bound
	answers   *admission.Budget // nil = no bound
	bodyLimit int64             // bytes; negative = no limit
	timeout   time.Duration
	buffers   sync.Pool // of *buffer
}

func newCore(c Config) *core {
	out := &core{requests: c.Requests, answers: c.Answers, bodyLimit: c.MaxBodySize, timeout: c.RequestTimeout}
	if out.bodyLimit == 0 {
		out.bodyLimit = DefaultMaxBodySize
	}
	if out.timeout <= 0 {
		out.timeout = DefaultRequestTimeout
	}
	out.buffers.New = func() any { return new(buffer) }
	return out
}
