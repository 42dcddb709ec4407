//go:build quorate_powercut

package raftfsm_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	wal "github.com/hashicorp/raft-wal"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/powercut"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// TestPowerChild is the process whose power is cut. It runs servers whose file operations are recorded, and writers.
// It also records each step of disk work.
func TestPowerChild(t *testing.T) {
	dir := os.Getenv(powerDir)
	if dir == "" {
		t.Skip("not a test: other tests start and kill this process")
	}
	wal.DefaultSegmentSize = powerSegment
	recorder, err := powercut.RecordFiles(dir, os.Getenv(powerTrace), 2*time.Millisecond)
	must(t, err)
	size, err := strconv.Atoi(os.Getenv(powerServers))
	must(t, err)
	limit, _ := strconv.Atoi(os.Getenv(powerLimit))
	c := newCluster(t)
	hosts := powerOpen(t, c, dir, raftlog.Engine(os.Getenv(powerEngine)), size,
		func(name string) { recorder.Note("step " + name) })
	fmt.Println("open")
	var wg sync.WaitGroup
	for w := range crashWriters {
		wg.Go(func() { powerWrite(t, recorder, hosts[w%len(hosts)].Store("", "s"), w, limit) })
	}
	wg.Wait()
	for _, h := range hosts {
		c.stop(h)
	}
	fmt.Println("done")
}

// powerWrite writes increasing numbers. It records each number before the write, and again after the acknowledgement.
func powerWrite(t *testing.T, r *powercut.Recorder, s *raftfsm.Store, w, limit int) {
	strong, eventual, left, right := crashKeys(w)
	number := map[string]int{}
	read := func(key string) {
		eventually(t, func() error {
			item, err := s.Get(context.Background(), state.GetRequest{Key: key,
				ReadOptions: state.ReadOptions{Consistency: state.Strong}})
			if err == nil {
				number[key], err = numberIn(item)
			}
			return err
		})
	}
	keys := []string{strong, eventual, left}
	for _, k := range keys {
		read(k)
	}
	for i := 0; limit == 0 || i < limit; i++ {
		k, level := keys[i%3], state.Strong
		if k == eventual {
			level = state.Eventual
		}
		n := number[k] + 1
		r.Note(fmt.Sprintf("try %s %d", k, n))
		var err error
		if k == left {
			_, err = s.Transact(context.Background(), state.TransactRequest{Operations: []state.Operation{
				{Write: numbered(left, n)}, {Write: numbered(right, n)}}})
		} else {
			_, err = s.Set(context.Background(), state.SetRequest{Items: []state.Write{numbered(k, n)},
				Consistency: level})
		}
		if err != nil {
			read(k) // the write may have been applied
			continue
		}
		r.Note(fmt.Sprintf("ack %s %d", k, n))
		number[k] = n
	}
}

// powerOpen opens the servers of a cluster in dir, or makes them. It returns when they have a leader.
func powerOpen(t *testing.T, c *cluster, dir string, e raftlog.Engine, size int, step func(string)) []*raftfsm.Host {
	t.Helper()
	hosts, err := powerTry(t, c, dir, e, size, step, func(err error) { t.Errorf("fatal: %v", err) })
	must(t, err)
	return hosts
}
