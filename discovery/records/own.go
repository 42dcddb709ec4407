package records

import (
	"slices"
	"time"
)

// coalesce is how long changes of the own record are collected before they are told: an
// application that comes and goes quickly costs ten broadcasts a second at most.
const coalesce = 100 * time.Millisecond

// Broadcasts that tell of nothing but load are so far apart that all members together send
// few of them: a hint must not crowd out news.
const (
	loadPause       = 2 * time.Second
	loadPausePerOne = 250 * time.Millisecond // for each member
)

// maxGone is how many applications that are no longer served are remembered, so that
// changes since an older version can be told.
const maxGone = 256

// own is this node's record as it writes it.
type own struct {
	entries []Entry // by App
	changed map[App]uint64
	gone    map[App]uint64 // no longer served, since this version
	floor   uint64         // changes since an older version cannot be told any more
	version uint64

	told  *Record // as others were told; nil = not yet
	at    time.Time
	minor bool // what is untold is load alone
}

// toldVersion is the version that others were told; 0 = none.
func (o *own) toldVersion() uint64 {
	if o.told == nil {
		return 0
	}
	return o.told.Version
}

// put takes in what the node serves now; it reports whether that is news.
func (o *own) put(entries []Entry) bool {
	if o.version > 0 && slices.Equal(o.entries, entries) {
		return false
	}
	o.minor = o.version > 0 && (o.toldVersion() == o.version || o.minor) && onlyLoad(o.entries, entries)
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

// forget drops the oldest of those gone above maxGone.
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

// due reports whether it is time to tell others.
func (o *own) due(now time.Time, members int) bool {
	pause := coalesce
	if o.minor {
		pause = max(loadPause, time.Duration(members)*loadPausePerOne)
	}
	return o.version > o.toldVersion() && (o.told == nil || now.Sub(o.at) >= pause)
}

// tell fixes what others are told from now on.
func (o *own) tell(self Life, now time.Time) {
	o.told, o.at, o.minor = o.record(self), now, false
}

// message is what to broadcast: the whole record if it fits, else the changes since the
// oldest version that fits, else that there is a new version.
func (o *own) message(self Life, limit int) []byte {
	whole := update{life: self, version: o.version, put: o.entries}
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

// maxBases bounds how many versions message tries.
const maxBases = 16

// bases are versions whose successors could be told, the newest last: the more changes a
// broadcast carries, the more it makes up for those that got lost.
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

// since is what changed after base.
func (o *own) since(self Life, base uint64) update {
	u := update{life: self, base: base, version: o.version}
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

// record is the own record as it stands.
func (o *own) record(self Life) *Record {
	return newRecord(self, o.version, o.entries)
}

func newRecord(l Life, version uint64, entries []Entry) *Record {
	size := len(l.Node) + len(l.Boot) + 16
	for i := range entries {
		size += entrySize(&entries[i])
	}
	return &Record{Life: l, Version: version, Entries: entries, size: size, hash: l.hash(version)}
}
