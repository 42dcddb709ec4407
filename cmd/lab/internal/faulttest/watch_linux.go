package faulttest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	watchedPrefix = "w-"
	// removeEvery is how often a key is deleted: every eighth change is a delete, and all others are writes.
	removeEvery = 8
	// silence is how long a watch may receive nothing before its client reconnects. A running node sends a bookmark
	// every second. A paused node sends nothing.
	silence = 10 * time.Second
)

// Watches has clients that write keys with strong consistency, and watchers that watch these keys. Each node has a
// watcher, which connects to another running node while its own node is not running. One more watcher connects to
// random nodes. When the connection of a watcher ends, the watcher reconnects and continues at its last position.
//
// The changes of a key are numbered from 1, so a watcher detects at once if a change is missing, arrives twice, or
// arrives in the wrong order. At the end every watcher must have received every acknowledged write. If the store has
// discarded the changes after a watcher's position, for example after a clock jump, the watcher starts again at the
// current revision and may miss earlier writes.
type Watches struct {
	cluster *Cluster
	stop    context.CancelFunc // of the writers
	end     context.CancelFunc // of the watchers
	writing sync.WaitGroup
	reading sync.WaitGroup

	mu       sync.Mutex
	written  map[string]int    // by key, the last acknowledged change; guarded by mu, as are the fields below
	doubtful map[string]bool   // keys whose next change has an unknown outcome
	at       map[uint64]string // the change with a revision
	watchers []*watcher
	bad      []string
	events   int
	resumed  int // connections after the first one
	anew     int // watches whose position was no longer kept
}

// watcher is one client that watches.
type watcher struct {
	all   *Watches
	name  string
	node  int // position of its node in the cluster; -1 = moves
	rnd   *rand.Rand
	pos   uint64         // everything up to it was received; guarded by Watches.mu
	whole bool           // it has watched since before the first write; guarded by Watches.mu
	last  map[string]int // by key, the last change that was received; guarded by Watches.mu
}

// StartWatches starts writers and watchers. It returns when every key is watched.
func StartWatches(ctx context.Context, c *Cluster, seed uint64, writers int) (*Watches, error) {
	w := &Watches{cluster: c, written: map[string]int{}, doubtful: map[string]bool{}, at: map[uint64]string{}}
	pos, err := w.begin(ctx)
	if err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.Background())
	reading, end := context.WithCancel(context.Background())
	w.stop, w.end = stop, end
	for i := -1; i < len(c.Nodes()); i++ {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)+5000)) //nolint:gosec // chance, not a secret
		one := &watcher{all: w, name: fmt.Sprintf("the watcher at node %d", i+1), node: i, pos: pos, whole: true,
			last: map[string]int{}, rnd: rnd}
		if i < 0 {
			one.name = "the watcher that moves"
		}
		w.watchers = append(w.watchers, one)
		w.reading.Go(func() { one.run(reading) })
	}
	for id := range writers {
		rnd := rand.New(rand.NewPCG(seed, uint64(id)+4000)) //nolint:gosec // chance, not a secret
		w.writing.Go(func() {
			for n := 0; run.Err() == nil; n++ {
				w.write(run, rnd, fmt.Sprintf("%s%d-%d", watchedPrefix, id, n))
			}
		})
	}
	return w, nil
}

// event is one line of a watch.
type event struct {
	Type, Key, Value, Reason string
	Revision                 string
}

// begin opens a watch of the written keys and closes it again. The first watch of an application makes the store keep a
// history of changes. The history contains all changes after the returned revision.
func (w *Watches) begin(ctx context.Context) (pos uint64, err error) {
	err = Until(ctx, func() error {
		nodes := w.cluster.Running()
		if len(nodes) == 0 {
			return errors.New("no node runs")
		}
		limit, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		resp, err := nodes[0].open(limit, "GET", "/v1.0/watch/"+Store+"?prefix="+watchedPrefix, "")
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != 200 {
			return fmt.Errorf("a watch is answered with %d", resp.StatusCode)
		}
		var e event
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
			return err
		}
		pos, err = strconv.ParseUint(e.Revision, 10, 64)
		return err
	})
	return pos, err
}

// write changes a key 800 times. It repeats each change with the same request id until the change is acknowledged.
// write returns early when ctx ends, or when a change is not acknowledged within a minute.
func (w *Watches) write(ctx context.Context, rnd *rand.Rand, key string) {
	for number := 1; number <= 100*removeEvery; number++ {
		change := Write{Key: key, Value: strconv.Itoa(number)}
		if number%removeEvery == 0 {
			change.Value = ""
		}
		r := One(change, Strong).With("Quorate-Request-Id", fmt.Sprintf("%s-%d", key, number))
		w.mu.Lock()
		w.doubtful[key] = true
		w.mu.Unlock()
		for begin := time.Now(); ; pause(ctx, 20*time.Millisecond) {
			var a Answer
			w.cluster.pass(ctx, func() { a = ask(ctx, w.cluster, rnd, r) })
			if a.Outcome == Done {
				break
			}
			if ctx.Err() != nil || time.Since(begin) > time.Minute {
				return
			}
		}
		w.mu.Lock()
		w.written[key], w.doubtful[key] = number, false
		w.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
	}
}

// ask sends a request to a random running node.
func ask(ctx context.Context, c *Cluster, rnd *rand.Rand, r Request) Answer {
	nodes := c.Running()
	if len(nodes) == 0 {
		return Answer{Outcome: Refused}
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	return nodes[rnd.IntN(len(nodes))].Do(limit, r)
}

// run watches until ctx ends.
func (w *watcher) run(ctx context.Context) {
	for first := true; ctx.Err() == nil; first = false {
		node := w.pick()
		if node == nil {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		if !first {
			w.all.mu.Lock()
			w.all.resumed++
			w.all.mu.Unlock()
		}
		if err := w.watch(ctx, node); err != nil {
			pause(ctx, 50*time.Millisecond)
		}
	}
}

func (w *watcher) pick() *Node {
	nodes := w.all.cluster.Nodes()
	if w.node >= 0 && w.node < len(nodes) && nodes[w.node].Running() {
		return nodes[w.node]
	}
	if nodes = w.all.cluster.Running(); len(nodes) > 0 {
		return nodes[w.rnd.IntN(len(nodes))]
	}
	return nil
}

// watch receives events from one node until the connection ends.
func (w *watcher) watch(ctx context.Context, n *Node) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if w.node < 0 {
		move := time.AfterFunc(time.Duration(200+w.rnd.IntN(3000))*time.Millisecond, cancel)
		defer move.Stop()
	}
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	w.all.mu.Lock()
	pos := w.pos
	w.all.mu.Unlock()
	path := "/v1.0/watch/" + Store + "?bookmark=1s&prefix=" + watchedPrefix
	if pos != 0 {
		path += "&from=" + strconv.FormatUint(pos, 10)
	}
	resp, err := n.open(ctx, "GET", path, "")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == 410 {
		w.anew()
	}
	if resp.StatusCode != 200 {
		return fmt.Errorf("a watch is answered with %d", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		quiet.Reset(silence)
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return err // the line was cut
		}
		if e.Type == "error" {
			if e.Reason == "compacted" {
				w.anew()
			}
			return errors.New(e.Reason)
		}
		w.receive(n, &e)
	}
	return lines.Err()
}

// anew resets the watcher, because the store no longer has the changes after its position. Its next watch starts at
// the current revision.
func (w *watcher) anew() {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.all.anew++
	w.pos, w.whole, w.last = 0, false, map[string]int{}
}

// receive checks one event.
func (w *watcher) receive(n *Node, e *event) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	revision, err := strconv.ParseUint(e.Revision, 10, 64)
	fail := func(format string, args ...any) {
		text := fmt.Sprintf("%s got from %s %+v: ", w.name, n.Name, *e)
		w.all.bad = append(w.all.bad, text+fmt.Sprintf(format, args...))
	}
	switch {
	case err != nil:
		fail("the revision is no number")
		return
	case e.Type == "bookmark":
		if revision < w.pos {
			fail("it goes back behind %d", w.pos)
		}
		w.pos = max(w.pos, revision)
		return
	case revision <= w.pos:
		fail("it does not come after %d", w.pos)
		return
	}
	w.pos = revision
	w.all.events++
	before, known := w.last[e.Key]
	number := before + 1
	if e.Type == "put" {
		number, _ = strconv.Atoi(e.Value)
	} else if !known {
		number = removeEvery // which delete it is shows with the next value
	}
	wrong := (e.Type == "delete") != (number%removeEvery == 0) || e.Type == "delete" && e.Reason != "deleted"
	if wrong || number != before+1 && (known || w.whole) {
		fail("it is change %d, and the last one was %d", number, before)
	}
	w.last[e.Key] = number
	if !known && e.Type == "delete" && !w.whole {
		delete(w.last, e.Key)
	}
	if !w.whole {
		return // its numbers of deletes may be unknown
	}
	change := fmt.Sprintf("%s %d", e.Key, number)
	if had, ok := w.all.at[revision]; ok && had != change {
		fail("another watcher got %s with this revision", had)
	}
	w.all.at[revision] = change
}

// Stop stops the writers, waits until every watcher has received all acknowledged writes, and returns the violations.
func (w *Watches) Stop(ctx context.Context) []string {
	w.stop()
	w.writing.Wait()
	err := Until(ctx, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, one := range w.watchers {
			if err := w.missing(one); err != nil {
				return err
			}
		}
		return nil
	})
	w.end()
	w.reading.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.bad = append(w.bad, err.Error())
	}
	return w.bad
}

// missing returns an error if the watcher has not received the last acknowledged write of a key. After a reset of the
// watcher, missing checks only keys that were received since then. The caller holds w.mu.
func (w *Watches) missing(one *watcher) error {
	for _, key := range slices.Sorted(maps.Keys(w.written)) {
		got, known := one.last[key]
		want := w.written[key]
		if !known && !one.whole {
			continue // it may have been written before this watch
		}
		if got != want && (got != want+1 || !w.doubtful[key]) {
			return fmt.Errorf("%s has change %d of %s as the last one, and %d were acknowledged", one.name, got, key,
				want)
		}
	}
	return nil
}

// Bad returns the violations so far.
func (w *Watches) Bad() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.bad)
}

// Events returns the number of events that were checked.
func (w *Watches) Events() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events
}

// String returns a summary.
func (w *Watches) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	changes := 0
	for _, n := range w.written {
		changes += n
	}
	return fmt.Sprintf("%d writes acknowledged, %d events at %d watchers, %d times continued, %d times begun anew",
		changes, w.events, len(w.watchers), w.resumed, w.anew)
}
