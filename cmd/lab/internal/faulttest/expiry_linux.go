package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Expiries has clients that save keys with a TTL, and read each key with strong consistency until it has expired. A
// key that expires before its TTL is a violation.
type Expiries struct {
	cluster *Cluster
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu    sync.Mutex
	bad   []string      // guarded by mu, as are the fields below
	kept  int           // keys that expired on time or late
	late  time.Duration // the longest delay of an expiry
	saved []string
}

// StartExpiries starts the given number of clients. They run until Stop.
func StartExpiries(c *Cluster, seed uint64, clients int) *Expiries {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Expiries{cluster: c, stop: cancel}
	for id := range clients {
		rnd := rand.New(rand.NewPCG(seed, uint64(id)+3000)) //nolint:gosec // chance, not a secret
		e.wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				e.life(ctx, rnd, fmt.Sprintf("e-%d-%d", id, n))
			}
		})
	}
	return e
}

// life saves one key and follows it until it has expired.
func (e *Expiries) life(ctx context.Context, rnd *rand.Rand, key string) {
	seconds := 2 + rnd.IntN(5)
	begun := time.Now()
	var a Answer
	e.cluster.pass(ctx, func() { a = e.ask(ctx, rnd, Expiring(key, "v", seconds)) })
	if a.Outcome != Done {
		pause(ctx, 20*time.Millisecond)
		return
	}
	acknowledged := time.Now()
	early := begun.Add(time.Duration(seconds) * time.Second)
	for ctx.Err() == nil {
		pause(ctx, time.Duration(50+rnd.IntN(300))*time.Millisecond)
		asked := time.Now()
		e.cluster.pass(ctx, func() { a = e.ask(ctx, rnd, Get(key, Strong)) })
		answered := time.Now()
		switch {
		case a.Outcome != Done:
		case a.Items[0].Value != "":
			e.mu.Lock()
			e.late = max(e.late, asked.Sub(acknowledged)-time.Duration(seconds)*time.Second)
			e.mu.Unlock()
		default:
			e.mu.Lock()
			defer e.mu.Unlock()
			if answered.Before(early) {
				e.bad = append(e.bad, fmt.Sprintf("%s, saved at %s for %d s, was gone %s before its time",
					key, begun.Format(time.RFC3339Nano), seconds, early.Sub(answered)))
				return
			}
			e.kept++
			return
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.saved = append(e.saved, key)
}

func (e *Expiries) ask(ctx context.Context, rnd *rand.Rand, r Request) Answer {
	nodes := e.cluster.Running()
	if len(nodes) == 0 {
		return Answer{Outcome: Refused}
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	return nodes[rnd.IntN(len(nodes))].Do(limit, r)
}

// Stop stops the clients, waits until the last keys have expired, and returns the violations.
func (e *Expiries) Stop(ctx context.Context) ([]string, error) {
	e.stop()
	e.wg.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, key := range e.saved {
		err := Until(ctx, func() error {
			nodes := e.cluster.Running()
			if len(nodes) == 0 {
				return errors.New("no node runs")
			}
			a := nodes[0].Do(ctx, Get(key, Strong))
			if a.Outcome == Done && a.Items[0].Value != "" {
				return fmt.Errorf("%s is still there", key)
			}
			return a.Err()
		})
		if err != nil {
			return e.bad, err
		}
	}
	return e.bad, nil
}

// Bad returns the violations so far.
func (e *Expiries) Bad() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bad
}

// Kept returns the number of keys that a client has read until they expired, and that did not expire too early.
func (e *Expiries) Kept() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kept
}

// String returns a summary.
func (e *Expiries) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprintf("%d keys with a TTL of seconds, the latest expired %s late", e.kept,
		e.late.Round(time.Millisecond))
}
