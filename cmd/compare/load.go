package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// operation is the request that a client repeats.
type operation string

// The measured operations. Strong reads and writes are linearizable. An eventual read is answered by one node without
// a request to the other nodes; etcd calls such a read serializable. A single Redis has only eventual reads. Each
// client has a lock of its own, which is free when it is acquired.
const (
	strongSave   operation = "strong save"
	strongRead   operation = "strong read"
	eventualRead operation = "eventual read"
	lockUnlock   operation = "lock and unlock"
	call         operation = "call" // of an application, which returns the value
)

// client makes one request after another. It is not safe for concurrent use.
type client interface {
	save(ctx context.Context, key, value string) error
	read(ctx context.Context, key string, strong bool) (value string, err error)
	// lock acquires a lock, and releases it.
	lock(ctx context.Context, name string) error
}

// lockTime is the expiry of locks.
const lockTime = time.Minute

// errLocked is the error of a lock that should be free.
var errLocked = errors.New("the lock has another owner, or was lost")

// store is a running system.
type store interface {
	name() string
	about() string // version, settings and client, for the report
	// clients returns n clients, spread over the nodes. They are closed with the store.
	clients(n int) ([]client, error)
	// cpu returns the CPU time that the processes of the store have used since their start, and false if it is
	// unknown.
	cpu() (time.Duration, bool)
	end()
}

// figures are the results of several turns.
type figures struct {
	count   int
	elapsed time.Duration
	cpu     time.Duration // CPU time of the processes of the store; 0 = unknown
	turns   []float64     // requests per second of each turn
	buckets [400]int      // latency histogram from 1 microsecond; each bucket is 5 % wider than the previous one
}

const growth = 1.05

func (f *figures) add(d time.Duration) { f.addMany(d, 1) }

// addMany adds n requests with the same latency.
func (f *figures) addMany(d time.Duration, n int) {
	f.count += n
	b := int(math.Log(max(float64(d)/float64(time.Microsecond), 1)) / math.Log(growth))
	f.buckets[min(b, len(f.buckets)-1)] += n
}

func (f *figures) merge(other *figures) {
	f.count += other.count
	for i, n := range other.buckets {
		f.buckets[i] += n
	}
}

// rate returns requests per second.
func (f *figures) rate() float64 { return float64(f.count) / f.elapsed.Seconds() }

// String returns the text of a table cell.
func (f *figures) String() string {
	s := fmt.Sprintf("%.0f, %s, %s", f.rate(), f.quantile(0.5), f.quantile(0.99))
	if f.cpu > 0 {
		s += ", " + f.cost().String()
	}
	return s
}

// cost returns the CPU time of the store per request. Unlike the rate, it does not depend on other load on the
// machine.
func (f *figures) cost() time.Duration {
	return (f.cpu / time.Duration(max(f.count, 1))).Round(time.Microsecond)
}

// beside returns a table cell that compares f with the figures of another store. It has up to three parts. The first is
// the request rate of f divided by the request rate of the other store. The second, in parentheses, has the lowest and
// the highest of these ratios in a single turn. The third is the CPU time per request of the other store divided by
// that of f; it is omitted if one of these times is unknown.
func (f *figures) beside(other *figures) string {
	s := fmt.Sprintf("**%.1f**", f.rate()/other.rate())
	if low, high := f.spread(other); high > 0 {
		s += fmt.Sprintf(" (%.1f to %.1f)", low, high)
	}
	if f.cpu > 0 && other.cpu > 0 {
		s += fmt.Sprintf(", %.1f", float64(other.cost())/float64(max(f.cost(), 1)))
	}
	return s
}

// spread divides, for each turn, the request rate of f by the request rate of the other store. It returns the lowest
// and the highest of these ratios, or zeros if there were fewer than two turns.
func (f *figures) spread(other *figures) (low, high float64) {
	if n := len(f.turns); n < 2 || n != len(other.turns) {
		return 0, 0
	}
	ratios := make([]float64, len(f.turns))
	for i, rate := range f.turns {
		ratios[i] = rate / other.turns[i]
	}
	return slices.Min(ratios), slices.Max(ratios)
}

// quantile returns the latency that the given fraction of the requests did not exceed. The fraction is from 0 to 1. The
// error is at most 5 %.
func (f *figures) quantile(part float64) time.Duration {
	seen, want := 0, int(math.Ceil(part*float64(f.count)))
	for i, n := range f.buckets {
		if seen += n; seen >= want {
			return time.Duration(math.Pow(growth, float64(i+1)) * float64(time.Microsecond)).Round(
				10 * time.Microsecond)
		}
	}
	return 0
}

// meter is a store that brings its own load program.
type meter interface {
	// measure adds the results of about the time during to f.
	measure(ctx context.Context, f *figures, op operation, clients int, value string, during time.Duration) error
}

// load runs n clients against the store st for the given duration, and adds the measurements to f. It checks every
// response. An error or a wrong value ends the measurement, and load returns the error.
func load(ctx context.Context, f *figures, st store, op operation, n, keys int, value string,
	during time.Duration) error {
	if m, ok := st.(meter); ok {
		return m.measure(ctx, f, op, n, value, during)
	}
	clients, err := st.clients(n)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	parts := make([]figures, n)
	var wg sync.WaitGroup
	before, known := st.cpu()
	begin := time.Now()
	for id, c := range clients {
		wg.Go(func() {
			for i := id; time.Since(begin) < during && ctx.Err() == nil; i += n {
				sent := time.Now()
				key := "k" + strconv.Itoa(i%keys)
				if op == lockUnlock {
					key = "lock" + strconv.Itoa(id)
				}
				if err := once(ctx, c, op, key, value); err != nil {
					cancel(err)
					return
				}
				parts[id].add(time.Since(sent))
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	f.elapsed += took
	if after, ok := st.cpu(); ok && known {
		f.cpu += after - before
	}
	count := 0
	for i := range parts {
		f.merge(&parts[i])
		count += parts[i].count
	}
	f.turns = append(f.turns, float64(count)/took.Seconds())
	return context.Cause(ctx)
}

func once(ctx context.Context, c client, op operation, key, value string) error {
	switch op {
	case strongSave:
		return c.save(ctx, key, value)
	case lockUnlock:
		return c.lock(ctx, key)
	}
	got, err := c.read(ctx, key, op == strongRead)
	if err == nil && got != value {
		return &wrongValueError{key: key, bytes: len(got)}
	}
	return err
}

type wrongValueError struct {
	key   string
	bytes int
}

func (e *wrongValueError) Error() string {
	return "the value of " + e.key + " is not the written one; it has " + strconv.Itoa(e.bytes) + " other bytes"
}

// fill writes value to every key, and waits until all nodes return the value of the last key. So every later eventual
// read finds a value.
func fill(ctx context.Context, st store, keys int, value string) error {
	clients, err := st.clients(3)
	if err != nil {
		return err
	}
	for i := range keys {
		if err := clients[i%len(clients)].save(ctx, "k"+strconv.Itoa(i), value); err != nil {
			return err
		}
	}
	for _, c := range clients {
		if err := until(ctx, func() error {
			return once(ctx, c, eventualRead, "k"+strconv.Itoa(keys-1),
				value)
		}); err != nil {
			return err
		}
	}
	return nil
}

// until retries for a minute, ten times per second.
func until(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}
