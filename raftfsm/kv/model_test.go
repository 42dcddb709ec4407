package kv_test

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// model is the reference implementation of the machine, written as simply as possible with maps and
// linear searches.
type model struct {
	window, maxClients uint64
	maxOrigins         int

	clock, revision uint64
	rows            map[[2]string]modelRow      // store and key
	histories       map[[2]string]*modelHistory // store and prefix
	origins         []*modelOrigin
	clients         []modelClient // oldest first; an id used again appears twice
}

type modelRow struct {
	value       string
	contentType string
	revision    uint64
	expireAt    uint64
}

type modelOrigin struct {
	number, mark, lastSeen uint64
	name                   string
	results                map[uint64]kv.Result
}

type modelClient struct {
	id       command.ClientID
	ops      []command.Op
	expireAt uint64
	result   kv.Result
}

func newModel(window uint64, origins int, clients uint64) *model {
	return &model{window: window, maxOrigins: origins, maxClients: clients, rows: map[[2]string]modelRow{},
		histories: map[[2]string]*modelHistory{}}
}

func (m *model) apply(index uint64, b command.Batch) []kv.Result {
	m.clock = max(m.clock, b.Stamp)
	var results []kv.Result
	for _, r := range b.Requests {
		results = append(results, m.request(index, r))
	}
	return results
}

func (m *model) request(index uint64, r command.Request) kv.Result {
	if r.ID.Origin == 0 {
		return m.decide(index, r)
	}
	at := slices.IndexFunc(m.origins, func(o *modelOrigin) bool { return o.number == r.ID.Origin })
	if at < 0 {
		return kv.Result{Outcome: kv.Stale, Index: index}
	}
	o := m.origins[at]
	if m.clock-o.lastSeen >= kv.OriginRefresh {
		o.lastSeen = m.clock
	}
	o.mark = max(o.mark, r.ID.Done)
	if r.ID.Seq > m.window {
		o.mark = max(o.mark, r.ID.Seq-m.window)
	}
	if r.ID.Seq <= o.mark {
		return kv.Result{Outcome: kv.Stale, Index: index}
	}
	if res, ok := o.results[r.ID.Seq]; ok {
		res.Replayed = true
		return res
	}
	res := m.decide(index, r)
	o.results[r.ID.Seq] = res
	return res
}

func (m *model) decide(index uint64, r command.Request) kv.Result {
	res := kv.Result{Outcome: kv.Applied, Index: index}
	switch r.Kind {
	case command.KindRegister:
		m.origins = slices.DeleteFunc(m.origins, func(o *modelOrigin) bool { return o.name == r.Name })
		if len(m.origins) >= m.maxOrigins {
			m.sortOrigins()
			m.origins = m.origins[1:]
		}
		m.revision++
		m.origins = append(m.origins, &modelOrigin{
			number: m.revision, name: r.Name, lastSeen: m.clock, results: map[uint64]kv.Result{},
		})
		res.Revisions = []uint64{m.revision}
	case command.KindExpire:
		m.expire(int(r.Limit), &res)
	case command.KindWatch:
		m.watch(r.Watch)
	case command.KindWrite:
		return m.writeOnce(r, res)
	}
	return res
}

func (m *model) writeOnce(r command.Request, res kv.Result) kv.Result {
	if r.Client.ID == "" {
		return m.write(r.Ops, res)
	}
	for _, c := range slices.Backward(m.clients) {
		if c.id != r.Client || c.expireAt <= m.clock {
			continue
		}
		if !reflect.DeepEqual(c.ops, r.Ops) {
			res.Outcome = kv.Rejected
			return res
		}
		c.result.Replayed = true
		return c.result
	}
	res = m.write(r.Ops, res)
	m.clients = append(m.clients, modelClient{
		id: r.Client, ops: r.Ops, expireAt: m.clock + command.ClientResultLife, result: res,
	})
	if uint64(len(m.clients)) > m.maxClients {
		m.clients = m.clients[1:]
	}
	return res
}

func (m *model) write(ops []command.Op, res kv.Result) kv.Result {
	for _, o := range ops {
		row, found := m.get(o.Store, o.Key, m.clock)
		ok := false
		switch o.Cond {
		case command.CondNone:
			ok = true
		case command.CondAbsent:
			ok = !found
		case command.CondRevision:
			ok = found && row.revision == o.Revision
		}
		if !ok {
			res.Outcome, res.Key = kv.Conflict, o.Key
			return res
		}
	}
	defer m.endRequest(m.lengths())
	for _, o := range ops {
		k := [2]string{o.Store, o.Key}
		if o.Kind == command.OpDelete {
			m.removed(k)
			res.Revisions = append(res.Revisions, 0)
			continue
		}
		m.revision++
		res.Revisions = append(res.Revisions, m.revision)
		at := o.ExpireAt
		if at == 0 && o.TTL != 0 {
			at = m.clock + o.TTL
			if at < m.clock {
				at = math.MaxUint64
			}
		}
		if at != 0 && at <= m.clock {
			m.removed(k)
			continue
		}
		m.rows[k] = modelRow{value: string(o.Value), contentType: o.ContentType, revision: m.revision, expireAt: at}
		m.changed(k, kv.Change{Revision: m.revision, Value: o.Value, ContentType: o.ContentType, ExpireAt: at})
	}
	return res
}

func (m *model) get(store, key string, now uint64) (modelRow, bool) {
	r, ok := m.rows[[2]string{store, key}]
	return r, ok && (r.expireAt == 0 || r.expireAt > now)
}

func (m *model) expire(limit int, res *kv.Result) {
	var due [][2]string
	for k, r := range m.rows {
		if r.expireAt != 0 && r.expireAt <= m.clock {
			due = append(due, k)
		}
	}
	slices.SortFunc(due, func(a, b [2]string) int {
		return cmp.Or(cmp.Compare(m.rows[a].expireAt, m.rows[b].expireAt), cmp.Compare(a[0], b[0]),
			cmp.Compare(a[1], b[1]))
	})
	for i, k := range due {
		if i == limit {
			res.More = true
			break
		}
		from := m.lengths()
		m.removed(k)
		m.endRequest(from)
		res.Expired++
	}
	for i := 0; len(m.clients) > 0 && m.clients[0].expireAt <= m.clock; i++ {
		if i == limit {
			res.More = true
			break
		}
		m.clients = m.clients[1:]
		res.Expired++
	}
	m.sortOrigins()
	for i := 0; len(m.origins) > 0 && m.origins[0].lastSeen+kv.OriginLife <= m.clock; i++ {
		if i == limit {
			res.More = true
			break
		}
		m.origins = m.origins[1:]
		res.Expired++
	}
	for k, h := range m.histories {
		if h.until <= m.clock {
			delete(m.histories, k)
			res.Expired++
		}
	}
}

func (m *model) sortOrigins() {
	slices.SortFunc(m.origins, func(a, b *modelOrigin) int {
		return cmp.Or(cmp.Compare(a.lastSeen, b.lastSeen), cmp.Compare(a.number, b.number))
	})
}

func (m *model) nextDue() (uint64, bool) {
	next := uint64(math.MaxUint64)
	for _, r := range m.rows {
		if r.expireAt != 0 {
			next = min(next, r.expireAt)
		}
	}
	for _, c := range m.clients {
		next = min(next, c.expireAt)
	}
	for _, o := range m.origins {
		next = min(next, o.lastSeen+kv.OriginLife)
	}
	return next, next != math.MaxUint64
}

// list returns every live key of a store with a prefix, in order.
func (m *model) list(store, prefix string, now uint64) []kv.Listed {
	var items []kv.Listed
	for k := range m.rows {
		if r, ok := m.get(k[0], k[1], now); ok && k[0] == store && len(k[1]) >= len(prefix) &&
			k[1][:len(prefix)] == prefix {
			items = append(items, kv.Listed{Key: k[1], Revision: r.revision, ExpireAt: r.expireAt, Size: len(r.value)})
		}
	}
	slices.SortFunc(items, func(a, b kv.Listed) int { return cmp.Compare(a.Key, b.Key) })
	return items
}

func (r modelRow) String() string {
	return fmt.Sprintf("%q %d until %d", r.value, r.revision, r.expireAt)
}
