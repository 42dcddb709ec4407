package workflows

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/grouptest"
)

// backlog is a leader of a group that has many activities in one bucket.
type backlog struct {
	*grouptest.Group
	k       *Keeper
	session *session
	streams []*stream
	handed  map[taskID]int
}

// write stores activities in the log. If queue is true, it also queues them, as change.install does.
func (b *backlog) write(r Ref, count int, app string, queue bool) {
	var list []command.Op
	record := taskRecord{app: app, exec: "execution"}
	for n := range count {
		list = append(list, set(r.taskKey(int32(n), 1), record.encode())) //nolint:gosec // few
		if len(list) == 1000 || n == count-1 {
			b.Propose("write", nil, &command.Request{Kind: command.KindWrite, Ops: list})
			list = nil
		}
	}
	b.k.mu.Lock()
	defer b.k.mu.Unlock()
	for n := range count {
		if queue {
			b.k.queueTask(&task{id: taskID{r, int32(n), 1}, app: app, exec: "execution"}) //nolint:gosec // few
		}
	}
}

// join adds streams of an application to the session.
func (b *backlog) join(app string, count int) {
	b.k.mu.Lock()
	for range count {
		id := uint64(len(b.session.streams))
		b.k.addStream(b.session, id, app, workflow.Worker{})
		b.streams = append(b.streams, b.session.streams[id])
	}
	b.k.fill(app)
	b.k.mu.Unlock()
	b.Settle()
}

// complete completes the activities of the stream that has waited longest. It returns false if no stream has any.
func (b *backlog) complete() bool {
	var list []command.Op
	var done []*task
	b.k.mu.Lock()
	b.session.out = nil
	for range b.streams {
		s := b.streams[0]
		if b.streams = append(b.streams[1:], s); s.activities > 0 {
			break
		}
	}
	last := b.streams[len(b.streams)-1]
	for id, t := range b.k.tasks {
		if t.lease == last {
			b.handed[id]++
			list, done = append(list, remove(id.taskKey(id.task, id.birth))), append(done, t)
		}
	}
	b.k.mu.Unlock()
	if len(done) == 0 {
		return false
	}
	b.Propose("complete", nil, &command.Request{Kind: command.KindWrite, Ops: list})
	b.k.mu.Lock()
	for _, t := range done {
		b.k.finished(t, nil)
	}
	b.k.mu.Unlock()
	b.Settle()
	return true
}

// refs returns instances of one bucket, in the order of their keys.
func refs(count int) (list []Ref) {
	for n := 0; len(list) < count; n++ {
		r := Ref{modelApp, fmt.Sprintf("%06d", n)}
		if len(list) == 0 || r.bucket() == list[0].bucket() {
			list = append(list, r)
		}
	}
	return list
}

// A backlog is many times as long as the queue, and streams have as many activities as the queue. The time to read the
// backlog is proportional to its length. Every activity is handed out. This includes activities that are written in
// the meantime, activities of streams that end, and activities of an application that gets a worker later.
func TestScan_ReadsABacklogAFewTimes(t *testing.T) {
	const long, few, streams = 12 * maxQueue, 500, 16
	synctest.Test(t, func(t *testing.T) {
		g := grouptest.New(t, 1, 1)
		s := &server{Member: g.Members[0], model: &model{Group: g}}
		g.Changed = func(*grouptest.Member) { s.keeper.Update() }
		s.open()
		all := refs(3)
		b := &backlog{Group: g, k: s.keeper, handed: map[taskID]int{},
			session: &session{streams: map[uint64]*stream{}, wake: make(chan struct{}, 1)}}
		g.Elect(s.Member)
		b.write(all[1], long, modelApp, false)
		b.write(all[2], few, "other", false)
		k := b.k
		k.mu.Lock()
		k.application(modelApp).places[all[0].bucket()] = true
		k.mu.Unlock()
		b.join(modelApp, streams)
		for step := 0; b.complete(); step++ {
			switch step {
			case 20:
				b.write(all[0], maxQueue, modelApp, true)
			case 40:
				k.mu.Lock()
				for _, one := range b.streams {
					k.removeStream(b.session, one.id)
				}
				k.mu.Unlock()
				b.streams = nil
				b.join(modelApp, streams)
			}
		}
		const own, count = long + maxQueue, long + maxQueue + few
		if n := len(b.handed); n != own {
			t.Errorf("%d activities were completed, want %d", n, own)
		}
		if read := k.scanned; read > 4*count {
			t.Errorf("%d records were read of %d", read, count)
		}
		b.join("other", 1)
		for b.complete() {
		}
		if n := len(b.handed); n != count {
			t.Errorf("%d activities were completed, want %d", n, count)
		}
		if n := slices.Max(slices.Collect(maps.Values(b.handed))); n != 1 {
			t.Errorf("an activity was completed %d times", n)
		}
		k.Close()
		g.Close()
	})
}
