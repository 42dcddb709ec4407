package node

import (
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/admission"
)

// memory holds the budgets of the requests and answers of all listeners of a node.
type memory struct {
	requests *admission.Budget
	answers  *admission.Budget
}

// newMemory returns the memory budgets for requests and answers. The parameter limit is the number of bytes that the
// process may use, or 0 if this number is unknown. The parameter timeout is the maximum duration of a request.
func newMemory(limit int64, timeout time.Duration, reg prometheus.Registerer) memory {
	size := int64(admission.DefaultBytes)
	if limit > 0 {
		size = admission.Size(limit)
	}
	// A large request waits for memory for at most half of its timeout, because the other half is for its work.
	// Answers get less memory than requests, because their clients are near and read quickly. Also, the unread answer
	// of a closed connection leaves the budget at once, but stays in memory until the next garbage collection.
	patience := min(timeout/2, admission.DefaultLargePatience)
	return memory{
		requests: admission.New(admission.Options{Name: "requests", Bytes: size, LargePatience: patience,
			Registerer: reg}),
		answers: admission.New(admission.Options{Name: "answers", Bytes: size / 4, LargePatience: patience,
			Registerer: reg}),
	}
}

// lookForBurst is the interval at which giveBack checks whether the node handles a burst of requests.
const lookForBurst = 5 * time.Second

// giveBack calls free after each burst of requests, until stop is closed. The function free returns unused memory to
// the operating system. The Go runtime alone does so only slowly, and an idle node would keep several times the memory
// that it needs.
func (m *memory) giveBack(stop <-chan struct{}, free func()) {
	tick := time.NewTicker(lookForBurst)
	defer tick.Stop()
	burst := false
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		busy := m.requests.Burst()
		busy = m.answers.Burst() || busy // both calls reset their budget
		if busy {
			burst = true
			continue
		}
		if burst {
			free()
			burst = false
		}
	}
}

// freeMemory returns unused memory to the operating system. It collects garbage twice, because buffers in a sync.Pool
// survive the first collection.
func freeMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}
