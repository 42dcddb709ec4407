package kv

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/quorate/quorate/raftfsm/command"
)

// Constants of the package, for tests. All except MaxFailures are part of the format.
const (
	FormatVersion    = formatVersion
	StageHold        = stageHold
	StageLife        = stageLife
	PebbleFormat     = uint64(pebbleFormat)
	MaxOpenSeq       = maxOpenSeq
	MaxOrigins       = maxOrigins
	MaxClientResults = maxClientResults
	MaxExpire        = maxExpire
	MaxTerms         = maxTerms
	MaxFailures      = maxFailures
	OriginLife       = originLife
	OriginRefresh    = originRefresh
)

// SetBounds lowers the bounds of m so that a test can exceed them.
func SetBounds(m *Machine, window uint64, origins int, clients uint64) {
	m.writer.bounds = bounds{window: window, origins: origins, clients: clients, terms: maxTerms}
}

// Install applies an entry to the database but does not publish the new state. The returned function publishes it.
func Install(m *Machine, e Entry) (publish func(), err error) {
	return m.publish, installWith(m, e, nil)
}

// InstallFailing applies an entry whose batch the database refuses with err.
func InstallFailing(m *Machine, e Entry, err error) error { return installWith(m, e, err) }

func installWith(m *Machine, e Entry, refused error) error {
	batch, damage := m.decode(&e)
	if damage != nil {
		return damage
	}
	m.writer.begin()
	if _, err := m.writer.entry(&e, &batch); err != nil {
		return err
	}
	m.writer.txn.err = keep(m.writer.txn.err, refused)
	return keep(m.install(), m.writer.end())
}

// CachedReads returns how many records the cache of reads contains.
func CachedReads(m *Machine) (n int) {
	for i := range m.reads.shards {
		s := &m.reads.shards[i]
		s.mu.Lock()
		n += len(s.young) + len(s.old)
		s.mu.Unlock()
	}
	return n
}

// DueFloor returns the time below which the due index is not searched.
func DueFloor(m *Machine) uint64 { return m.writer.dueFloor }

// FailuresInARow returns the number of consecutive background failures.
func FailuresInARow(m *Machine) int64 { return m.health.failures.Load() }

// PebbleFatal calls Pebble's Fatalf. It does not return.
func PebbleFatal(m *Machine, msg string) {
	(&pebbleLogger{engine: &engine{health: m.health}}).Fatalf("%s", msg)
}

// Put writes a raw value to the database, to simulate damage.
func Put(m *Machine, key, value []byte) error { return m.db.Set(key, value, pebble.NoSync) }

// CompactAll compacts everything to the lowest level.
func CompactAll(ctx context.Context, m *Machine) error {
	return m.db.Compact(ctx, []byte{0}, []byte{0xff}, false)
}

// Dump returns every key and value of the database, in order, as lines of hexadecimal digits.
func Dump(m *Machine) (lines []string, err error) {
	it, err := m.db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = keep(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		lines = append(lines, hex.EncodeToString(it.Key())+" "+hex.EncodeToString(it.Value()))
	}
	return lines, it.Error()
}

// Memory describes the origins that m holds in memory, in a form that can be compared.
func Memory(m *Machine) []string { return describe(m.writer.origins) }

func describe(t *origins) []string {
	var lines []string
	for _, n := range slices.Sorted(maps.Keys(t.byNumber)) {
		o := t.byNumber[n]
		lines = append(lines, fmt.Sprintf("origin %d %q mark %d seen %d entries %v", n, o.name, o.mark, o.lastSeen,
			o.entries))
		for _, seq := range slices.Sorted(maps.Keys(o.results)) {
			lines = append(lines, fmt.Sprintf("  %d: entry %d %x", seq, o.results[seq].index, o.results[seq].data))
		}
	}
	return lines
}

// CheckInvariants compares the tables with each other and memory with the tables.
func CheckInvariants(m *Machine) error {
	keys, due := uint64(0), map[string]bool{}
	err := scan(m.db, m.writer.meta.tables().data(), func(key, value []byte) error {
		keys++
		r, err := parseRecord(value)
		if err != nil {
			return err
		}
		if r.expireAt != 0 {
			k := append(appendNumberKey(nil, m.writer.meta.tables().due(), r.expireAt), key[1:]...)
			due[string(k)] = true
		}
		if r.revision > m.writer.meta.revision {
			return fmt.Errorf("key %q has revision %d, the counter is at %d", key, r.revision, m.writer.meta.revision)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if keys != m.writer.meta.keys {
		return fmt.Errorf("%d keys are stored, the count is %d", keys, m.writer.meta.keys)
	}
	if v, err := m.Verify(func(int) error { return nil }); err != nil || v.Wrong != "" || v.Applied != m.Applied() {
		return fmt.Errorf("the records do not verify: %+v, %w", v, err)
	}
	err = scan(m.db, m.writer.meta.tables().due(), func(key, _ []byte) error {
		if !due[string(key)] {
			return fmt.Errorf("due index has %x, no record does", key)
		}
		delete(due, string(key))
		if at, _, _, _ := parseDueKey(key); at < m.writer.dueFloor {
			return fmt.Errorf("due index has %x below the floor %d", key, m.writer.dueFloor)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(due) != 0 {
		return fmt.Errorf("%d expiring records are not in the due index", len(due))
	}
	if err := checkHistories(m); err != nil {
		return err
	}
	if err := checkRows(m); err != nil {
		return err
	}
	if err := checkClients(m); err != nil {
		return err
	}
	if err := checkOrigins(m.writer.origins); err != nil {
		return err
	}
	loaded := newOrigins()
	if err := loaded.load(m.db); err != nil {
		return err
	}
	if want, got := describe(m.writer.origins), describe(loaded); !slices.Equal(want, got) {
		return fmt.Errorf("origins in memory\n%q\nin the database\n%q", want, got)
	}
	return nil
}

// checkRows compares the cached rows with the database, and their size with its limit.
func checkRows(m *Machine) error {
	have := &m.writer.rows.recent
	fresh := newWriter(m.db, m.writer.meta, 0) // without cached rows, so that row reads the database
	fresh.begin()
	for _, generation := range []map[rowKey]*kept{have.young, have.old} {
		size := 0
		for k, p := range generation {
			size += keptSize + len(k.store) + len(k.key)
			stored, err := fresh.row(k)
			if err != nil {
				return keep(err, fresh.end())
			}
			if p.row != stored || p.key != k {
				return keep(fmt.Errorf("key %q is remembered as %+v, and is %+v", k.key, p.row, stored), fresh.end())
			}
		}
		if size > have.limit && len(generation) > 1 {
			return keep(fmt.Errorf("the rows that are remembered take %d bytes, the bound is %d", size, have.limit),
				fresh.end())
		}
	}
	return fresh.end()
}

// SetRowBytes lowers the size of m's row cache so that a test can exceed it.
func SetRowBytes(m *Machine, n int) {
	m.writer.rows.recent.forget()
	m.writer.rows.recent.limit = n / 2
}

// Remembers reports whether m caches the row of a key.
func Remembers(m *Machine, store, key string) bool {
	_, ok := m.writer.rows.recent.get(rowKey{store, key})
	return ok
}

// Remembered returns how many rows m caches.
func Remembered(m *Machine) int {
	keys := maps.Clone(m.writer.rows.recent.young)
	if keys == nil {
		return 0
	}
	maps.Copy(keys, m.writer.rows.recent.old)
	return len(keys)
}

func checkOrigins(t *origins) error {
	if len(t.byName) != len(t.byNumber) {
		return fmt.Errorf("%d origins by number, %d by name", len(t.byNumber), len(t.byName))
	}
	for _, o := range t.byNumber {
		if t.byName[o.name] != o {
			return fmt.Errorf("origin %d is not the one of its name %q", o.number, o.name)
		}
		if len(o.entries) > 0 && o.entries[0].last <= o.mark {
			return fmt.Errorf("origin %d with mark %d still has the results of entry %d", o.number, o.mark,
				o.entries[0].index)
		}
	}
	return nil
}

func checkClients(m *Machine) error {
	next := m.writer.meta.clientFirst
	rows := map[string]uint64{}
	err := scan(m.db, m.writer.meta.tables().client(), func(key, value []byte) error {
		r, err := parseClientRow(value)
		rows[string(key)] = r.number
		return err
	})
	if err != nil {
		return err
	}
	err = scan(m.db, m.writer.meta.tables().queue(), func(key, value []byte) error {
		number, _ := parseNumberKey(key)
		if number != next {
			return fmt.Errorf("client queue has number %d, want %d", number, next)
		}
		next++
		item, err := parseClientItem(value)
		if rows[item.key] == number {
			delete(rows, item.key)
		}
		return err
	})
	if err != nil {
		return err
	}
	if next != m.writer.meta.clientNext || len(rows) != 0 {
		return fmt.Errorf("client queue ends at %d, want %d; %d rows are not in it", next, m.writer.meta.clientNext,
			len(rows))
	}
	return nil
}

// Unhashed turns off the set hashes of m, for a benchmark of their cost.
func Unhashed(m *Machine) { m.writer.unhashed = true }

// Slip makes m store a wrong value once, as a memory error would.
func Slip(m *Machine, store, key string, value []byte) error {
	w := m.writer
	w.begin()
	old, err := w.row(rowKey{store, key})
	if err != nil {
		return err
	}
	w.store(rowKey{store, key}, old, old.expireAt, &command.Op{Value: value})
	return keep(m.install(), w.end())
}

// Member returns the hash that a record adds to the set hash.
func Member(key, value []byte) [2]uint64 { return member(key, value) }

// checkHistories compares the histories in memory with their tables.
func checkHistories(m *Machine) error {
	stored, err := readHistories(m.db)
	if err != nil || len(stored) != len(m.writer.histories.all) {
		return fmt.Errorf("%d histories are stored, %d in memory: %w", len(stored), len(m.writer.histories.all), err)
	}
	size, ids := uint64(0), map[uint64]*history{}
	for _, h := range stored {
		own := *m.writer.histories.all[h.key]
		own.touched = false
		if fmt.Sprint(own) != fmt.Sprint(*h) {
			return fmt.Errorf("history %v is stored as %v", own, *h)
		}
		size += h.size
		ids[h.id] = h
	}
	if size != m.writer.histories.size {
		return fmt.Errorf("the histories have %d bytes, the count is %d", size, m.writer.histories.size)
	}
	return scan(m.db, tableChange, func(key, value []byte) error {
		c, err := parseChange(key, value)
		if h := ids[binary.BigEndian.Uint64(key[1:])]; err != nil || h == nil || c.Revision <= h.floor {
			return fmt.Errorf("change %x belongs to no history: %w", key, err)
		}
		return nil
	})
}

// CutAt returns the ranges of a Reclaim with the given room, and the first and the last key of the tables.
func (m *Machine) CutAt(room uint64) (ranges [][2][]byte, first, last []byte) {
	tables, _ := m.sortedTables()
	for _, r := range cut(tables, room) {
		ranges = append(ranges, [2][]byte{r.start, r.end})
	}
	first, last = tables[0].Smallest.UserKey, tables[0].Largest.UserKey
	for i := range tables {
		if bytes.Compare(last, tables[i].Largest.UserKey) < 0 {
			last = tables[i].Largest.UserKey
		}
	}
	return ranges, first, last
}

// Era returns the era of the tables that readers use.
func (m *Machine) Era() uint64 { return uint64(m.readEra()) }
