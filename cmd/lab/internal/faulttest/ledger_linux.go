package faulttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// attemptTime is the timeout of one attempt. After this time, a client tries another node.
const attemptTime = time.Second

// Ledger runs clients that write each key once, and records which writes were acknowledged. A client sends each write
// to one random running node after another until the write succeeds or its deadline has passed. All attempts of a
// strong write have the same request id.
type Ledger struct {
	cluster  *Cluster
	level    Level
	deadline time.Duration
	stop     context.CancelFunc
	wg       sync.WaitGroup

	mu       sync.Mutex
	acked    []string      // guarded by mu, as are the fields below
	when     []time.Time   // times of the acknowledgements
	failed   []string      // writes that missed their deadline, with the last error
	longest  time.Duration // longest duration of a call
	retries  int
	lastDone time.Time
	gap      time.Duration // longest time without an acknowledgement
}

// StartLedger starts clients that write with the given consistency level. A client gives up a write that has taken
// longer than the deadline. Each value has pad+1 bytes.
func StartLedger(c *Cluster, seed uint64, clients int, level Level, deadline time.Duration, pad int) *Ledger {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Ledger{cluster: c, level: level, deadline: deadline, stop: cancel, lastDone: time.Now()}
	for id := range clients {
		rnd := rand.New(rand.NewPCG(seed, uint64(id)+1000)) //nolint:gosec // chance, not a secret
		l.wg.Go(func() {
			value := fmt.Sprintf("v%0*d", pad, 0)
			for n := 0; ctx.Err() == nil; n++ {
				c.pass(ctx, func() { l.write(ctx, rnd, fmt.Sprintf("l-%s-%d-%d", level, id, n), value) })
			}
		})
	}
	return l
}

func (l *Ledger) write(ctx context.Context, rnd *rand.Rand, key, value string) {
	begin := time.Now()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.deadline)
	defer cancel()
	r := Set(key, value, l.level)
	if l.level == Strong { // a write with an id waits for its result, so it is never eventual
		r = r.With("Quorate-Request-Id", key)
	}
	var a Answer
	retries := -1
	for a.Outcome != Done && bounded.Err() == nil {
		retries++
		nodes := l.cluster.Running()
		if len(nodes) == 0 {
			pause(bounded, 10*time.Millisecond)
			continue
		}
		attempt, end := context.WithTimeout(bounded, attemptTime)
		a = nodes[rnd.IntN(len(nodes))].Do(attempt, r)
		end()
		if a.Outcome != Done {
			pause(bounded, 20*time.Millisecond)
		}
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retries += retries
	l.longest = max(l.longest, now.Sub(begin))
	if a.Outcome != Done {
		l.failed = append(l.failed, fmt.Sprintf("%s: %v", key, a.Err()))
		return
	}
	l.acked, l.when = append(l.acked, key), append(l.when, now)
	l.gap, l.lastDone = max(l.gap, now.Sub(l.lastDone)), now
}

// Stop stops the clients after their current writes.
func (l *Ledger) Stop() {
	l.stop()
	l.wg.Wait()
}

// Acknowledged returns the number of acknowledged writes.
func (l *Ledger) Acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// Failed returns the writes that were not acknowledged before their deadline.
func (l *Ledger) Failed() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// String returns a summary.
func (l *Ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%s: %d acknowledged, %d repeated, %d failed; longest call %s, longest time without an "+
		"acknowledgement %s",
		l.level, len(l.acked), l.retries, len(l.failed), l.longest.Round(time.Millisecond),
		l.gap.Round(time.Millisecond))
}

// Missing returns the keys of acknowledged writes that are lost. It reads the keys with strong consistency, in
// batches, through all running nodes in turn. An eventual write is acknowledged before it is committed, so Missing
// waits up to 10 seconds for eventual writes that it does not find.
func (l *Ledger) Missing(ctx context.Context) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for deadline := time.Now().Add(settleTime); ; pause(ctx, 100*time.Millisecond) {
		missing, err := l.missingLocked(ctx)
		if err != nil || len(missing) == 0 || l.level == Strong || time.Now().After(deadline) {
			return missing, err
		}
	}
}

// Forget excludes keys from later calls of Missing. It is for lost writes that were already reported.
func (l *Ledger) Forget(keys []string) {
	gone := make(map[string]bool, len(keys))
	for _, k := range keys {
		gone[k] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var acked []string
	var when []time.Time
	for i, k := range l.acked {
		if !gone[k] {
			acked, when = append(acked, k), append(when, l.when[i])
		}
	}
	l.acked, l.when = acked, when
}

// When returns the times at which the writes of these keys were acknowledged.
func (l *Ledger) When(keys []string) []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := make(map[string]time.Time, len(l.acked))
	for i, k := range l.acked {
		at[k] = l.when[i]
	}
	out := make([]time.Time, len(keys))
	for i, k := range keys {
		out[i] = at[k]
	}
	return out
}

// settleTime is how long an acknowledged eventual write may take to be committed when there are no faults.
const settleTime = 10 * time.Second

func (l *Ledger) missingLocked(ctx context.Context) ([]string, error) {
	nodes := l.cluster.Running()
	var missing []string
	const batch = 500
	for from := 0; from < len(l.acked); from += batch {
		keys := l.acked[from:min(from+batch, len(l.acked))]
		var a Answer
		err := Until(ctx, func() error {
			a = nodes[from/batch%len(nodes)].Do(ctx, GetAll(keys, Strong))
			return a.Err()
		})
		if err != nil {
			return nil, err
		}
		for i, item := range a.Items {
			if item.Value == "" {
				missing = append(missing, keys[i])
			}
		}
	}
	return missing, nil
}
