package due

import (
	"strconv"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// MaxJobs is how many jobs an application may have. The number of reminders is not limited.
const MaxJobs = 100_000

// recount is the pause, in milliseconds, before the work of a full home is counted again.
const recount = 1000

// space is how much further work a home may have, as far as this leader knows.
type space struct {
	left    int
	counted uint64 // cluster time of the last count
}

// reserve takes a place for one more job in a home. It returns fault.Overloaded if the home is full. Reminders are not
// limited.
//
// The first call for a home counts its stored jobs. If the home seems to be full, reserve counts them again, at most
// once every recount milliseconds. Concurrent calls can exceed the limit by at most one job each.
func (k *Keeper) reserve(g records.Group, h Home) error {
	if h.Kind != KindJob {
		return nil
	}
	limit, now := k.opts.MaxJobs, g.Now()
	k.mu.Lock()
	s, known := k.spaces[h]
	if s.left--; s.left >= 0 {
		k.spaces[h] = s
	}
	k.mu.Unlock()
	if s.left >= 0 {
		return nil
	}
	if !known || now >= s.counted+recount {
		n, err := count(g.Machine(), h, limit)
		if err != nil {
			return err
		}
		s = space{limit - n - 1, now}
		k.mu.Lock()
		k.spaces[h] = space{max(s.left, 0), now}
		k.mu.Unlock()
	}
	if s.left >= 0 {
		return nil
	}
	return &fault.Error{Code: fault.Overloaded, Op: OpPut, Msg: "the application has " + strconv.Itoa(limit) +
		" jobs, which is the limit", Hint: "delete jobs that are not needed any more"}
}

// freed records that n jobs or reminders of a home have ended, so that the home may have n more.
func (k *Keeper) freed(h Home, n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s, known := k.spaces[h]; known {
		s.left += n
		k.spaces[h] = s
	}
}

// count returns how much work a home has. It stops counting when it has found limit items or more.
func count(m *kv.Machine, h Home, limit int) (n int, err error) {
	for after, more := "", true; more && n < limit; {
		var found []kv.Listed
		if found, more, err = m.List(kv.DueStore, h.States(), after, page, 0); err != nil {
			return n, err
		}
		if n += len(found); len(found) > 0 {
			after = found[len(found)-1].Key
		}
	}
	return n, nil
}
