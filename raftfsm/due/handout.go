package due

import (
	"context"
	"sort"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// handOut starts the deliveries of due ticks. It takes one tick of each Home in turn, until no further tick is due or
// allowed. It then sets a timer for the next update. No timer is set if maxUnderWay ticks are under way, because the
// end of any of them starts the next update.
func (k *Keeper) handOut() error {
	now := k.group.Now()
	defer k.observeWaiting(now)
	rooms := make(map[Home]int, len(k.turns))
	next, poll := uint64(0), false
	for waiting := k.turns; len(waiting) > 0; {
		left := waiting[:0:0]
		for _, q := range waiting {
			if err := q.fill(k.machine); err != nil {
				return err
			}
			if len(q.buf) == 0 {
				continue
			}
			if at := q.buf[0].at; at > now {
				if next == 0 || at < next {
					next = at
				}
				continue
			}
			room, asked := rooms[q.home]
			if !asked {
				room = k.room(q.home)
				rooms[q.home] = room
			}
			switch k.take(q, room) {
			case took:
				left = append(left, q)
			case mayNot:
				poll = true // no event reports that a target was added or can be called again
				if room == 0 {
					k.expireWaiting(q, now)
				}
			case full: // the end of a tick starts the next update
				k.rotate()
				return nil
			}
		}
		waiting = left
	}
	k.rotate()
	wait := time.Duration(0)
	if next > 0 {
		millis := min(next-now, uint64(maxWait/time.Millisecond))
		wait = time.Duration(millis) * time.Millisecond //nolint:gosec // bounded
	}
	if poll && (wait == 0 || wait > pollPause) {
		wait = pollPause
	}
	k.mu.Lock()
	k.setTimer(wait)
	k.mu.Unlock()
	return nil
}

// rotate drops the homes without work, and gives another home the first turn.
func (k *Keeper) rotate() {
	kept := make([]*queue, 0, len(k.turns))
	for i := range k.turns {
		q := k.turns[(i+1)%len(k.turns)]
		if len(q.buf) == 0 && !q.more {
			delete(k.queues, q.home)
			continue
		}
		kept = append(kept, q)
	}
	k.turns = kept
}

// Waiting describes the ticks of a kind that are due and not handed out.
type Waiting struct {
	Ticks  int    // at most maxBuffer of them are counted in each home
	Oldest uint64 // cluster time in Unix milliseconds at which the first of them was due
}

// Waiting returns the ticks of a kind that were waiting when the Keeper last looked at the due work. clock is the
// cluster time of this call. ok is false if this server does not lead the group, or if there is no work of the kind.
func (k *Keeper) Waiting(kind byte) (w Waiting, clock uint64, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w, ok = k.waiting[kind]; ok {
		clock = k.group.Now()
	}
	return w, clock, ok
}

// observeWaiting records the ticks that wait after a hand-out.
func (k *Keeper) observeWaiting(now uint64) {
	all := map[byte]Waiting{}
	for _, q := range k.turns {
		n := sort.Search(len(q.buf), func(i int) bool { return q.buf[i].at > now })
		w := all[q.home.Kind]
		if n > 0 && (w.Ticks == 0 || q.buf[0].at < w.Oldest) {
			w.Oldest = q.buf[0].at
		}
		w.Ticks += n
		all[q.home.Kind] = w
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting = all
}

// room returns how many ticks of a home may be under way in all (see Deliverer.Room). It returns 0 if the kind of the
// home has no Deliverer.
func (k *Keeper) room(h Home) int {
	k.mu.Lock()
	d := k.deliverers[h.Kind]
	k.mu.Unlock()
	if d == nil {
		return 0
	}
	return d.Room(h)
}

// The results of take.
const (
	took   = iota // the first tick has left the queue
	mayNot        // the home has as many ticks under way as it may have
	full          // the Keeper has as many ticks under way as it may have, or is closed
)

// take starts the delivery of the first tick of a queue, and returns took, mayNot or full. room is the result of k.room
// for the home of the queue.
//
// If another tick of the same work is under way, take delivers nothing. It removes the first tick from the queue, and
// the Keeper reads the work again when the other tick ends.
func (k *Keeper) take(q *queue, room int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.loads[q.home]
	key := flightKey{q.home, q.buf[0].name}
	f := k.flights[key]
	switch {
	case k.closed || f == nil && len(k.flights) >= maxUnderWay:
		return full
	case f != nil: // one tick of the same work at a time
		i := q.pop()
		f.again = true
		if i.written || i.at != f.at { // otherwise it may be the record of the flight, which was read again
			f.changed = true
			if f.pausing {
				f.cancel()
			}
		}
		return took
	case room == 0 || l != nil && (l.calls >= room || l.underWay-l.calls >= maxAnswered):
		return mayNot
	}
	i := q.pop()
	if l == nil {
		l = &load{}
		k.loads[q.home] = l
	}
	l.calls++
	l.underWay++
	ctx, cancel := context.WithCancel(k.closing)
	f = &flight{at: i.at, cancel: cancel}
	k.flights[key] = f
	k.opts.Observer.UnderWay(q.home.Kind, 1)
	d := k.deliverers[q.home.Kind]
	k.running.Go(func() {
		defer cancel()
		k.fly(ctx, key, f, l, d, i.at)
	})
	return took
}

// fly delivers one tick and acknowledges it. at is the time in the index record.
func (k *Keeper) fly(ctx context.Context, key flightKey, f *flight, l *load, d Deliverer, at uint64) {
	again := k.deliver(ctx, key, f, l, d, at)
	k.mu.Lock()
	defer k.mu.Unlock()
	if again || f.again {
		k.returned = append(k.returned, key)
	}
	delete(k.flights, key)
	if l.underWay--; l.underWay == 0 {
		delete(k.loads, key.home)
	}
	k.opts.Observer.UnderWay(key.home.Kind, -1)
	k.updates.Request()
}

// deliver reads the work of one tick, delivers the tick, and commits the result. It returns true if the Keeper must
// read the work again.
func (k *Keeper) deliver(ctx context.Context, key flightKey, f *flight, l *load, d Deliverer,
	at uint64) (again bool) {
	release := func() { // frees the place at the target
		k.mu.Lock()
		l.calls--
		k.updates.Request()
		k.mu.Unlock()
	}
	if !k.confirm() {
		release()
		return k.rest(ctx, f, retryPause)
	}
	w, found, err := Read(k.group.Machine(), key.home, key.name)
	if err != nil || !found || w.State.At != at || !k.group.Leading() {
		release()
		if err != nil && !fault.Is(err, fault.Unavailable) {
			k.opts.Logger.Error("due work cannot be read", "error", err, "name", key.name)
			return k.rest(ctx, f, lastBackoff)
		}
		return false // if the work still exists, its newest index record is in the queue or will be added
	}
	now := k.group.Now()
	if w.expired(now) {
		release()
		k.opts.Logger.Info("due work has ended before its tick: its ttl is over", "kind", KindName(w.Kind), "home",
			w.Prefix, "name", w.Name)
		return k.end(&w, outcomeExpired, RemoveOps(&w))
	}
	k.opts.Observer.Fired(key.home.Kind, time.Duration(max(now, at)-at)*time.Millisecond) //nolint:gosec // not negative
	r, err := d.Deliver(ctx, &Tick{Home: key.home, Name: key.name, Payload: w.Spec.Payload,
		Revision: w.Spec.Revision, Number: w.State.Ticks + 1, Attempt: w.State.Attempt + 1,
		Lost: k.lost(key, w.Spec.Revision), Due: w.State.Due, Final: w.final()})
	release()
	if r == Undelivered {
		k.opts.Observer.Ended(key.home.Kind, "undelivered")
		if ctx.Err() != nil {
			return true // the work was removed, or the Keeper closes
		}
		return k.rest(ctx, f, k.strike(key, w.Spec.Revision))
	}
	k.mu.Lock()
	delete(k.strikes, key)
	k.mu.Unlock()
	next, outcome := w.after(r, err, now, k.group.Now())
	k.report(&w, next, outcome, err)
	if next == nil {
		return k.end(&w, outcome, RemoveOps(&w))
	}
	return k.end(&w, outcome, stateOps(next, &w))
}

// report logs the outcome of an attempt in these cases:
//
//   - The first attempt of a tick has failed. These messages have a rate limit.
//   - The last allowed attempt has failed.
//   - The target does not know the work. If this happens at several ticks in a row, report logs only the first of them,
//     and the last tick of the work.
func (k *Keeper) report(w, next *Work, outcome string, failure error) {
	first := outcome == outcomeRetried && w.State.Attempt == 0
	if !first && outcome != outcomeFailed && outcome != outcomeUnknown {
		return // before the logger is made, which costs 3 % of the processor time of a tick
	}
	log := k.opts.Logger.With("kind", KindName(w.Kind), "home", w.Prefix, "name", w.Name)
	switch {
	case first:
		k.retries.Log(func(more int) {
			log.Warn("the first attempt of a tick has failed; its failure policy allows more", "error", failure,
				"similar", more)
		})
	case outcome == outcomeFailed:
		log.Warn("a tick is dropped: all attempts that its failure policy allows have failed", "attempts",
			w.State.Attempt+1, "last", next == nil, "error", failure)
	case outcome == outcomeUnknown && (next == nil || w.State.Error != unknownError):
		log.Warn("the application does not know due work, so the tick counts as done", "last", next == nil,
			"hint", "delete the job or the reminder, or let the application answer with another status than 404")
	}
}

// KindName returns the name of a kind: "job" or "reminder".
func KindName(kind byte) string {
	if kind == KindReminder {
		return "reminder"
	}
	return "job"
}

// confirm reports whether a majority confirms that this server leads. A later read then sees every removal that was
// acknowledged before the confirmation. A deposed leader therefore delivers no ticks of removed work.
func (k *Keeper) confirm() bool {
	ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
	defer cancel()
	return k.group.Confirm(ctx) == nil
}

// lost returns the number of deliveries that got no answer, as counted by strike, for the work with this revision.
func (k *Keeper) lost(key flightKey, revision uint64) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.strikes[key]; s.revision == revision {
		return uint64(s.n) //nolint:gosec // not negative
	}
	return 0
}

// strike counts a delivery that got no answer, and returns the pause before the next delivery. The pause grows with the
// count. revision identifies the work, so new work with the same name begins with the shortest pause.
func (k *Keeper) strike(key flightKey, revision uint64) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.strikes) >= maxUnderWay {
		clear(k.strikes)
	}
	s := k.strikes[key]
	if s.revision != revision {
		s = strikes{revision: revision}
	}
	pause := min(firstBackoff<<min(s.n, 10), lastBackoff)
	s.n++
	k.strikes[key] = s
	return pause
}

// rest pauses for d before the Keeper reads the work of a flight again. The pause ends early if the work is changed or
// removed. The result is always true, so that deliver can end with "return k.rest(...)".
func (k *Keeper) rest(ctx context.Context, f *flight, d time.Duration) bool {
	k.mu.Lock()
	f.pausing = true
	changed := f.changed
	k.mu.Unlock()
	if !changed {
		k.pause(ctx, d)
	}
	return true
}

// pause waits until d has passed or ctx ends.
func (k *Keeper) pause(ctx context.Context, d time.Duration) {
	done := make(chan struct{})
	stop := k.opts.AfterFunc(d, func() { close(done) })
	select {
	case <-done:
	case <-ctx.Done():
		stop()
	}
}

// end commits ops, which end a tick or move it to a later time. It retries until ops are applied, the work has changed,
// or this server no longer leads. The result reread is true if the caller must read the work again.
func (k *Keeper) end(w *Work, outcome string, ops []command.Op) (reread bool) {
	for {
		ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
		res, err := k.group.Commit(ctx, &command.Request{Kind: command.KindWrite, Ops: ops})
		cancel()
		switch {
		case err == nil && res.Outcome == kv.Applied:
			k.opts.Observer.Ended(w.Kind, outcome)
			if ops[0].Kind == command.OpDelete {
				k.freed(w.Home, 1)
			}
			return reread
		case err == nil:
			return true // the work was overwritten or removed, or an earlier proposal was applied after all
		case k.closing.Err() != nil || !k.group.Leading():
			return true
		}
		reread = true
		k.pause(k.closing, retryPause)
	}
}

// expireWaiting searches a queue for expired work and ends that work. It is used while no target of the home can be
// called, and starts at most one search per expiryPause. A search reads each item when it first finds the item, and
// again at the end of the item's ttl. It stops after about maxSearched bytes of payloads, and the next search continues
// there.
func (k *Keeper) expireWaiting(q *queue, now uint64) {
	if now < q.searched+uint64(expiryPause.Milliseconds()) {
		return
	}
	q.searched = now
	bytes := 0
	for n := range min(len(q.buf), page) {
		i := &q.buf[n]
		if i.at > now || bytes >= maxSearched {
			return
		}
		if now < i.expiry {
			continue
		}
		w, found, err := Read(k.machine, q.home, i.name)
		if err != nil {
			continue
		}
		bytes += len(w.Spec.Payload)
		i.expiry = never
		if found && w.State.At == i.at && w.Spec.Until != 0 {
			i.expiry = w.expiry()
		}
		if now >= i.expiry {
			k.expire(&w)
		}
	}
}

// expire ends work that has expired. It does not block.
func (k *Keeper) expire(w *Work) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := flightKey{w.Home, w.Name}
	if k.closed || k.flights[key] != nil || len(k.flights) >= maxUnderWay {
		return
	}
	k.flights[key] = &flight{cancel: func() {}}
	k.running.Go(func() {
		k.end(w, outcomeExpired, RemoveOps(w))
		k.mu.Lock()
		defer k.mu.Unlock()
		k.returned = append(k.returned, key)
		delete(k.flights, key)
		k.updates.Request()
	})
}
