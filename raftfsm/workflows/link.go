package workflows

import (
	"context"
	"crypto/rand"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

const (
	linkPause   = 100 * time.Millisecond // pause after a call that has failed
	callTimeout = 30 * time.Second
	// proofLife is how long a node keeps its activities without a proof that the leader still knows its session. It
	// is shorter than sessionLife. So the node ends its streams before the leader hands their activities to other
	// nodes.
	proofLife = sessionLife - 1500*time.Millisecond
)

// link is the session of a Broker in one Raft group. While the Broker has streams, one goroutine of the link pulls
// work.
type link struct {
	b   *Broker
	gid uint32

	mu      sync.Mutex
	session string          // "" = no session has begun
	joining string          // session whose join is not confirmed; "" = none
	joins   uint64          // number of joins that were tried
	unsure  bool            // the leader may not know which streams the session has
	leaving map[uint64]bool // streams whose end is being reported
	started bool            // the goroutine of run was started
	added   chan struct{}   // closed while there is a stream
}

// ask sends a call to the leader of the group.
func (l *link) ask(ctx context.Context, c *call) ([]byte, error) {
	out, _, err := l.b.access.Ask(ctx, l.gid, c.method(), c.append())
	return out, err
}

// current returns the id of the session, or "" if there is no session.
func (l *link) current() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session
}

// begin makes the link pull work, because there is a stream.
func (l *link) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.added:
	default:
		close(l.added)
	}
	if !l.started {
		l.started = true
		l.b.running.Go(l.run)
	}
}

// add makes the link pull work, and adds a stream to its session at the leader. If there is no session yet, add does
// not call the leader, because run begins a session with all streams.
func (l *link) add(ctx context.Context, s *Stream) error {
	l.begin()
	session := l.current()
	if session == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := l.ask(ctx, &call{what: callStream, session: session, a: s.id, ref: Ref{App: s.app},
		data: appendWorker(nil, s.worker)})
	return err
}

// leave reports the end of a stream to the leader. It repeats the call until the leader has answered, the session has
// ended, or the Broker is closed. If another goroutine is reporting the same end, leave returns at once.
func (l *link) leave(stream uint64) {
	l.mu.Lock()
	session, again := l.session, l.leaving[stream]
	l.leaving[stream] = true
	l.mu.Unlock()
	if again {
		return
	}
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.leaving, stream)
	}()
	for l.b.sending.Err() == nil && session != "" && session == l.current() {
		ctx, cancel := context.WithTimeout(l.b.sending, callTimeout)
		_, err := l.ask(ctx, &call{what: callLeave, session: session, a: stream})
		cancel()
		if err == nil {
			return
		}
		sleep(l.b.sending, linkPause)
	}
}

// run pulls work while there are streams. It returns when the Broker closes.
func (l *link) run() {
	ctx, received := l.b.pulling, uint64(0)
	proof := time.Now() // begin of the newest call during which a majority has confirmed the leader
	logged := ""        // the reason why the last call failed
	for {
		l.mu.Lock()
		added, session, unsure := l.added, l.session, l.unsure
		l.mu.Unlock()
		select {
		case <-added:
		case <-ctx.Done():
			return
		}
		if l.b.idle(l) {
			continue
		}
		begun := time.Now()
		until := proof.Add(proofLife) // the node may keep its activities until then, so no call lasts longer
		if begun.After(until) {
			l.b.lose(l.gid)
			until = begun.Add(proofLife)
		}
		var err error
		known, a := false, answer{}
		if session != "" && !unsure {
			known, a, err = l.pull(ctx, session, received, until)
		}
		if err == nil && !known {
			if err = l.join(ctx, session, until); err == nil {
				proof, received = begun, 0 // the entry with the session is a proof
			}
		} else if err == nil {
			if a.proven {
				proof = begun
			}
			if a.number != 0 {
				received = a.number
			}
			l.arrived(ctx, session, a.items, proof.Add(proofLife))
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			logged = ""
			continue
		}
		absent := fault.Is(err, fault.Timeout) || fault.Is(err, fault.Unavailable) || fault.Is(err, fault.NotLeader)
		if reason := err.Error(); !absent && reason != logged {
			l.b.opts.Logger.Warn("work of workflows cannot be received", "group", l.gid, "error", err)
			logged = reason
		}
		sleep(ctx, linkPause)
	}
}

// arrived gives items to their streams. It first reads the missing parts of their histories from the leader. These
// reads end at the time in until, because run must notice when the node has no proof any more.
func (l *link) arrived(ctx context.Context, session string, items []*item, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for _, i := range items {
		l.b.arrived(ctx, l, session, i)
	}
}

// pull waits for work, up to the given deadline. received is the number of the last answer that this node has received.
func (l *link) pull(ctx context.Context, session string, received uint64, until time.Time) (known bool, a answer,
	err error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	out, err := l.ask(ctx, &call{what: callPull, session: session, a: received})
	if err != nil {
		return false, a, err
	}
	return readAnswer(out)
}

// join begins a session, and reports the streams of the node and their activities. previous is the earlier session, or
// "" if there is none. join gives up at the deadline, because the leader may then give the activities to another node.
func (l *link) join(ctx context.Context, previous string, until time.Time) error {
	l.mu.Lock()
	if l.joining == "" {
		l.joining = rand.Text()
	}
	l.joins++
	j := Join{Session: l.joining, Previous: previous, Number: l.joins}
	l.session = j.Session // a stream that begins from here on is added to the new session
	l.mu.Unlock()
	j.Streams, j.Workers, j.Held = l.b.inventory(l.gid)
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	_, err := l.ask(ctx, j.append())
	if err != nil {
		l.mu.Lock()
		l.session = previous
		l.mu.Unlock()
		return err
	}
	l.mu.Lock()
	l.joining, l.unsure = "", true
	l.mu.Unlock()
	// Report the streams that have begun or ended while the call was under way.
	streams, workers, _ := l.b.inventory(l.gid)
	for id, app := range streams {
		if _, told := j.Streams[id]; !told {
			c := &call{what: callStream, session: j.Session, a: id, ref: Ref{App: app},
				data: appendWorker(nil, workers[id])}
			if _, err := l.ask(ctx, c); err != nil {
				return err
			}
		}
	}
	for id := range j.Streams {
		if _, there := streams[id]; !there {
			if _, err := l.ask(ctx, &call{what: callLeave, session: j.Session, a: id}); err != nil {
				return err
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsure = false
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// token returns a new completion token for an item from the group gid. The end of the token is random.
func token(gid uint32, i *item) string {
	b := strconv.AppendUint([]byte{"?wa"[i.kind]}, uint64(gid), 36)
	for _, n := range [...]uint64{i.stream, i.number, i.birth} {
		b = strconv.AppendUint(append(b, '-'), n, 36)
	}
	return string(append(append(b, '-'), rand.Text()[:10]...))
}
