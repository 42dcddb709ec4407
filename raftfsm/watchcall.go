package raftfsm

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/feed"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/peercalls"
)

// The kinds of calls in MethodWatch and MethodWatchWait. The numbers are part of the protocol.
const (
	watchRead = 1 + iota // changes after a revision
	watchWait            // waits until there are changes after a revision; part of MethodWatchWait
	watchScan            // the next items of a scan; id 0 begins a new scan
)

const (
	watchPatience = 10 * time.Second // how long one call waits for changes
	maxWatchWaits = 256              // calls of this node that wait for changes at a time
	watchPoll     = time.Second      // pause between two reads of a history for which no such call is free
	maxWatchRead  = 1 << 20          // bytes of changes in one answer, plus one value
	scanLife      = time.Minute      // how long a scan is kept without a call
	maxScans      = 64               // scans of other nodes at a time
)

// Bits of a change in a message.
const (
	sentDeleted = 1 << iota
	sentExpired
	sentLast
)

// history implements replica.
func (s *sidecar) history(at history) historyReader { return &remoteHistory{s, at} }

// remoteHistory implements historyReader with calls to servers.
type remoteHistory struct {
	sidecar *sidecar
	at      history
}

// ask sends a call of MethodWatch to the nearest server. If this server fails, ask tries the next one. It returns the
// answer and the id of the server that answered.
func (r *remoteHistory) ask(ctx context.Context, body []byte) (f *peercalls.Frame, to string, err error) {
	err = errNoLeader("raftfsm.Watch", r.at.group)
	for _, to = range r.sidecar.targets(r.at.group, false) {
		if f, err = r.askOne(ctx, to, body); err == nil || !readElsewhere(err) || ctx.Err() != nil {
			return f, to, err
		}
		r.sidecar.noteFailure(to, err)
	}
	return nil, "", err
}

func (r *remoteHistory) askOne(ctx context.Context, to string, body []byte) (*peercalls.Frame, error) {
	ctx, cancel := context.WithTimeout(ctx, firstTry)
	defer cancel()
	out, err := r.sidecar.peers.Call(ctx, to, peercalls.MethodWatch, r.message(body))
	if err != nil {
		return nil, err
	}
	return peercalls.NewFrame(out), nil
}

func (r *remoteHistory) message(body []byte) []byte {
	b := lenprefix.Append(lenprefix.Append(peercalls.Message(r.at.group), r.at.store), r.at.prefix)
	return append(b, body...)
}

func (r *remoteHistory) read(ctx context.Context, after uint64, maxBytes int) (kv.Changes, error) {
	body := binary.AppendUvarint([]byte{watchRead}, after)
	f, _, err := r.ask(ctx, binary.AppendUvarint(body, uint64(maxBytes))) //nolint:gosec // positive
	if err != nil {
		if fault.Is(err, fault.NotLeader) || fault.Is(err, fault.Timeout) && ctx.Err() == nil {
			return kv.Changes{}, &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Watch", Msg: "no server answers",
				Err: err}
		}
		return kv.Changes{}, err
	}
	c := kv.Changes{Kept: f.Byte() == 1, ID: f.Uvarint(), Floor: f.Uvarint(), Until: f.Uvarint(), Revision: f.Uvarint(),
		Restored: f.Uvarint(), Seen: f.Uvarint()}
	c.Items = readChanges(f)
	if f.Bad {
		return kv.Changes{}, peercalls.ErrFrame(peercalls.MethodWatch)
	}
	return c, nil
}

// wait implements historyReader. It sends a server a call that waits for changes. At most maxWatchWaits such calls of
// this node run at a time. If this number is reached and no call ends within watchPoll, wait returns without a call.
//
// After a failed call, wait returns within retryPause. It does not record the failure in the route table; the next read
// does this if the server still fails. If too many calls to the server are waiting (see peer.Client.Wait), the call
// fails after watchPatience + firstTry.
func (r *remoteHistory) wait(ctx context.Context, after uint64) {
	poll := time.NewTimer(watchPoll)
	defer poll.Stop()
	select {
	case r.sidecar.watchWaits <- struct{}{}:
		defer func() { <-r.sidecar.watchWaits }()
	case <-poll.C:
		return
	case <-ctx.Done():
		return
	}
	if !r.waitAt(ctx, after) {
		r.sidecar.waitChange(ctx, r.at.group)
	}
}

// waitAt sends the nearest server a call that waits for changes. It reports whether the call has succeeded.
func (r *remoteHistory) waitAt(ctx context.Context, after uint64) bool {
	targets := r.sidecar.targets(r.at.group, false)
	if len(targets) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, watchPatience+firstTry)
	defer cancel()
	_, err := r.sidecar.peers.Wait(ctx, targets[0], peercalls.MethodWatchWait,
		r.message(binary.AppendUvarint([]byte{watchWait}, after)))
	return err == nil
}

func (r *remoteHistory) scan(ctx context.Context, prefix string) (feed.Scan, error) {
	s := &remoteScan{history: r, prefix: prefix}
	if err := s.fetch(ctx, scanBytes); err != nil {
		return nil, err
	}
	return s, nil
}

// scanBytes is about how many bytes of items the first call of a scan returns.
const scanBytes = 256 << 10

// remoteScan implements feed.Scan on a node without data. One server keeps a snapshot open and returns all pages, so
// all items are from the same state.
type remoteScan struct {
	history  *remoteHistory
	prefix   string
	to       string
	id       uint64
	revision uint64
	items    []kv.Change // fetched, not returned yet
	more     bool
	started  bool
}

func (s *remoteScan) fetch(ctx context.Context, maxBytes int) (err error) {
	body := lenprefix.Append(binary.AppendUvarint([]byte{watchScan}, s.id), s.prefix)
	body = binary.AppendUvarint(body, uint64(maxBytes)) //nolint:gosec // positive
	var f *peercalls.Frame
	if s.to == "" {
		f, s.to, err = s.history.ask(ctx, body)
	} else {
		f, err = s.history.askOne(ctx, s.to, body)
	}
	if err != nil {
		return err
	}
	s.id, s.revision, s.more = f.Uvarint(), f.Uvarint(), f.Byte() == 1
	if s.items = readChanges(f); f.Bad {
		return peercalls.ErrFrame(peercalls.MethodWatch)
	}
	return nil
}

func (s *remoteScan) Revision() uint64 { return s.revision }

func (s *remoteScan) Close() {} // the server ends the scan after scanLife

func (s *remoteScan) Next(ctx context.Context, maxBytes int) ([]state.Change, bool, error) {
	if s.started {
		if err := s.fetch(ctx, maxBytes); err != nil {
			return nil, false, err
		}
	}
	s.started = true
	return toChanges(s.items), s.more, nil
}

func appendChanges(b []byte, items []kv.Change) []byte {
	b = binary.AppendUvarint(b, uint64(len(items)))
	for i := range items {
		c := &items[i]
		bits := byte(0)
		for n, set := range [...]bool{c.Deleted, c.Expired, c.Last} {
			if set {
				bits |= 1 << n
			}
		}
		b = binary.AppendUvarint(append(b, bits), c.Revision)
		b = lenprefix.Append(lenprefix.Append(lenprefix.Append(b, c.Key), c.ContentType), c.Value)
		b = binary.AppendUvarint(b, c.ExpireAt)
	}
	return b
}

func readChanges(f *peercalls.Frame) (items []kv.Change) {
	for n := f.Count(); n > 0 && !f.Bad; n-- {
		bits := f.Byte()
		items = append(items, kv.Change{Deleted: bits&sentDeleted != 0, Expired: bits&sentExpired != 0,
			Last: bits&sentLast != 0, Revision: f.Uvarint(), Key: f.Text(), ContentType: f.Text(), Value: f.Bytes(),
			ExpireAt: f.Uvarint()})
	}
	return items
}

// serveWatch answers a call of MethodWatch or MethodWatchWait from a node without data.
func (s *server) serveWatch(ctx context.Context, gid uint32, f *peercalls.Frame) ([]byte, error) {
	at := history{store: f.Text(), prefix: f.Text(), group: gid}
	local := &localHistory{s.groups[gid], at}
	part, n := f.Byte(), f.Uvarint()
	switch {
	case f.Bad:
	case part == watchWait:
		ctx, cancel := context.WithTimeout(ctx, watchPatience)
		defer cancel()
		local.wait(ctx, n)
		return nil, nil
	case part == watchRead:
		if size := f.Uvarint(); !f.Bad {
			return readWatch(ctx, local, n, size)
		}
	case part == watchScan:
		if prefix, size := f.Text(), f.Uvarint(); !f.Bad {
			return s.scans.next(ctx, local, n, prefix, size)
		}
	}
	return nil, peercalls.ErrFrame(peercalls.MethodWatch)
}

func readWatch(ctx context.Context, l *localHistory, after, size uint64) ([]byte, error) {
	if !l.group.CaughtUp() {
		return nil, fault.New(fault.Unavailable, "raftfsm.Watch", "this replica has not caught up")
	}
	c, err := l.read(ctx, after, int(min(size, maxWatchRead))) //nolint:gosec // bounded
	if err != nil {
		return nil, err
	}
	b := []byte{peercalls.BoolByte(c.Kept)}
	for _, n := range [...]uint64{c.ID, c.Floor, c.Until, c.Revision, c.Restored, c.Seen} {
		b = binary.AppendUvarint(b, n)
	}
	return appendChanges(b, c.Items), nil
}

// scans holds the open scans of this server's data, which other nodes read. The zero value is ready to use.
type scans struct {
	mu   sync.Mutex
	open map[uint64]*openScan // by id. The ids are random, so that no id of an earlier process is used again.
}

type openScan struct {
	stop *time.Timer

	mu     sync.Mutex // one call at a time
	scan   feed.Scan
	closed bool
}

func (s *scans) next(ctx context.Context, l *localHistory, id uint64, prefix string, size uint64) ([]byte, error) {
	one, id, err := s.get(ctx, l, id, prefix)
	if err != nil {
		return nil, err
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.closed {
		return nil, errScanEnded()
	}
	one.stop.Reset(scanLife)
	items, more, err := one.scan.(*localScan).scan.Next(int(min(size, maxWatchRead))) //nolint:gosec // bounded
	if err != nil || !more {
		s.forget(id)
		one.close()
	}
	if err != nil {
		return nil, err
	}
	b := binary.AppendUvarint(binary.AppendUvarint(nil, id), one.scan.Revision())
	return appendChanges(append(b, peercalls.BoolByte(more)), items), nil
}

func errScanEnded() error { return fault.New(fault.NotFound, "raftfsm.Watch", "the scan has ended") }

func (s *scans) get(ctx context.Context, l *localHistory, id uint64, prefix string) (*openScan, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.open[id]; one != nil {
		return one, id, nil
	}
	switch {
	case id != 0:
		return nil, 0, errScanEnded()
	case len(s.open) >= maxScans:
		return nil, 0, fault.New(fault.Overloaded, "raftfsm.Watch", "too many snapshots are being read")
	case !l.group.CaughtUp():
		return nil, 0, fault.New(fault.Unavailable, "raftfsm.Watch", "this replica has not caught up")
	}
	scan, err := l.scan(ctx, prefix)
	if err != nil {
		return nil, 0, err
	}
	if s.open == nil {
		s.open = map[uint64]*openScan{}
	}
	id = rand.Uint64() | 1 // not 0
	one := &openScan{scan: scan, stop: time.AfterFunc(scanLife, func() { s.drop(id) })}
	s.open[id] = one
	return one, id, nil
}

// drop ends a scan that was not read for scanLife. If a call is reading the scan, drop first waits until that call has
// ended.
func (s *scans) drop(id uint64) {
	if one := s.forget(id); one != nil {
		one.mu.Lock()
		defer one.mu.Unlock()
		one.close()
	}
}

// forget removes a scan from the open scans, and returns the scan. It returns nil if the scan was removed before.
func (s *scans) forget(id uint64) *openScan {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.open[id]
	delete(s.open, id)
	return one
}

// close closes the scan once. The caller holds o.mu.
func (o *openScan) close() {
	if o.closed {
		return
	}
	o.closed = true
	o.stop.Stop()
	o.scan.Close()
}
