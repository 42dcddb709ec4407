package records

import (
	"slices"
	"time"
)

// coalesce is the minimum time between two broadcasts of this node's record. A broadcast contains all changes since
// the previous one. So this node sends at most ten broadcasts per second.
const coalesce = 100 * time.Millisecond

// The minimum time between a broadcast and the next one, if only the load of applications has changed. It is
// loadPausePerOne times the number of members, but at least loadPause. In a large cluster, more frequent broadcasts of
// the load would displace other messages.
const (
	loadPause       = 2 * time.Second
	loadPausePerOne = 250 * time.Millisecond // pause for each member
)

// maxGone is how many removed applications this node remembers. The node needs them for updates, because an update
// lists the applications that were removed since its base version.
const maxGone = 256

// own is this node's record.
type own struct {
	entries []Entry // by App
	changed map[App]uint64
	gone    map[App]uint64 // applications that are no longer served, and since which version
	floor   uint64         // changes since a version below floor are no longer known
	version uint64

	announced *Record // the record that was broadcast last; nil = none yet
	at        time.Time
	minor     bool // only loads have changed since announced
}

// announcedVersion returns the version that was broadcast last, or 0.
func (o *own) announcedVersion() uint64 {
	if o.announced == nil {
		return 0
	}
	return o.announced.Version
}

// put replaces the entries and raises the version. If the record already has these entries, put does nothing and
// returns false.
func (o *own) put(entries []Entry) bool {
	if o.version > 0 && slices.Equal(o.entries, entries) {
		return false
	}
	o.minor = o.version > 0 && (o.announcedVersion() == o.version || o.minor) && onlyLoad(o.entries, entries)
	o.version++
	old := Record{Entries: o.entries}
	next := Record{Entries: slices.Clone(entries)}
	for _, e := range next.Entries {
		if was, ok := old.Find(e.App); !ok || was != e {
			o.changed[e.App] = o.version
			delete(o.gone, e.App)
		}
	}
	for _, e := range old.Entries {
		if _, ok := next.Find(e.App); !ok {
			delete(o.changed, e.App)
			o.gone[e.App] = o.version
		}
	}
	o.entries = next.Entries
	o.forget()
	return true
}

func onlyLoad(a, b []Entry) bool {
	return slices.EqualFunc(a, b, func(x, y Entry) bool { x.Load, y.Load = 0, 0; return x == y })
}

// forget removes the oldest entries from gone until maxGone are left. It also raises floor, the oldest version on which
// an update can be based, because an update with an older base would now be incomplete.
func (o *own) forget() {
	for len(o.gone) > maxGone {
		oldest, at := App{}, o.version+1
		for a, v := range o.gone {
			if v < at || v == at && a.compare(oldest) < 0 {
				oldest, at = a, v
			}
		}
		delete(o.gone, oldest)
		o.floor = max(o.floor, at)
	}
}

// due reports whether a broadcast is to be sent now.
func (o *own) due(now time.Time, members int) bool {
	pause := coalesce
	if o.minor {
		pause = max(loadPause, time.Duration(members)*loadPausePerOne)
	}
	return o.version > o.announcedVersion() && (o.announced == nil || now.Sub(o.at) >= pause)
}

// announce stores the current record as the one that was broadcast last.
func (o *own) announce(self Incarnation, now time.Time) {
	o.announced, o.at, o.minor = o.record(self), now, false
}

// message returns the broadcast for the current version of the record. It contains the first of the following that fits
// into limit bytes:
//
//   - the whole record
//   - the changes since an earlier version, which is as old as possible
//   - only the version number
func (o *own) message(self Incarnation, limit int) []byte {
	whole := update{incarnation: self, version: o.version, put: o.entries}
	if b := whole.encode(); len(b) <= limit {
		return b
	}
	for _, base := range o.bases() {
		u := o.since(self, base)
		if b := u.encode(); len(b) <= limit {
			return b
		}
	}
	return (&announcement{self, o.version}).encode()
}

// maxBases is the maximum number of versions that the method message tries as the base of an update.
const maxBases = 16

// bases returns versions that can be the base of an update, in ascending order and at most maxBases. This node still
// knows all changes since these versions. An update with an older base is larger, but more nodes can apply it.
func (o *own) bases() []uint64 {
	var all []uint64
	for _, v := range o.changed {
		all = append(all, v-1)
	}
	for _, v := range o.gone {
		all = append(all, v-1)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	all = slices.DeleteFunc(all, func(v uint64) bool { return v < o.floor || v == 0 })
	return all[max(0, len(all)-maxBases):]
}

// since returns the changes after base.
func (o *own) since(self Incarnation, base uint64) update {
	u := update{incarnation: self, base: base, version: o.version}
	for _, e := range o.entries {
		if o.changed[e.App] > base {
			u.put = append(u.put, e)
		}
	}
	for a, v := range o.gone {
		if v > base {
			u.gone = append(u.gone, a)
		}
	}
	slices.SortFunc(u.gone, App.compare)
	return u
}

// record returns this node's current record.
func (o *own) record(self Incarnation) *Record {
	return newRecord(self, o.version, o.entries)
}

func newRecord(l Incarnation, version uint64, entries []Entry) *Record {
	size := len(l.Node) + len(l.Boot) + 16
	for i := range entries {
		size += entrySize(&entries[i])
	}
	return &Record{Incarnation: l, Version: version, Entries: entries, size: size, hash: l.hash(version)}
}
