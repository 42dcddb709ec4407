package faulttest

import (
	"testing"
	"time"
)

// The model must refuse what no lock service may do.
func TestLockModel_RefusesWrongHistories(t *testing.T) {
	const s = time.Second
	lock := func(owner string) lockIn { return lockIn{call: callLock, owner: owner, expiry: s} }
	unlock := func(owner string) lockIn { return lockIn{call: callUnlock, owner: owner} }
	renew := func(owner string) lockIn { return lockIn{call: callRenew, owner: owner, expiry: 3 * s} }
	write := func(token uint64) lockIn { return lockIn{call: callWrite, token: token} }
	granted := func(token uint64) lockOut { return lockOut{ok: true, token: token} }
	type op struct {
		at  time.Duration
		in  lockIn
		out lockOut
	}
	for name, c := range map[string]struct {
		ops []op
		ok  bool
	}{
		"one after the other": {[]op{{0, lock("a"), granted(1)}, {1, unlock("a"), lockOut{}},
			{2, lock("b"), granted(2)}}, true},
		"two owners":        {[]op{{0, lock("a"), granted(1)}, {1, lock("b"), granted(2)}}, false},
		"after its expiry":  {[]op{{0, lock("a"), granted(1)}, {s, lock("b"), granted(2)}}, true},
		"before its expiry": {[]op{{0, lock("a"), granted(1)}, {s - 1, lock("b"), granted(2)}}, false},
		"after a renewal": {[]op{{0, lock("a"), granted(1)}, {1, renew("a"), granted(1)},
			{s, lock("b"), granted(2)}}, false},
		"kept too long":      {[]op{{0, lock("a"), granted(1)}, {9 * s, lock("b"), lockOut{}}}, true},
		"refused while free": {[]op{{0, lock("a"), lockOut{}}}, false},
		"a repeated token": {[]op{{0, lock("a"), granted(1)}, {1, unlock("a"), lockOut{}},
			{2, lock("b"), granted(1)}}, false},
		"another token after a renewal": {[]op{{0, lock("a"), granted(1)}, {1, renew("a"), granted(2)}}, false},
		"a renewal of a lost lock": {[]op{{0, lock("a"), granted(1)}, {s, lock("b"), granted(2)},
			{s, renew("a"), granted(1)}}, false},
		"an unlock of another owner": {[]op{{0, lock("a"), granted(1)}, {1, unlock("b"), lockOut{}}}, false},
		"a write of the owner":       {[]op{{0, lock("a"), granted(1)}, {1, write(1), lockOut{ok: true}}}, true},
		"a write of the owner that is refused": {[]op{{0, lock("a"), granted(1)},
			{1, write(1), lockOut{}}}, false},
		"a write of a former owner": {[]op{{0, lock("a"), granted(1)}, {s, lock("b"), granted(2)},
			{s, write(1), lockOut{ok: true}}}, false},
		"a refused write of a former owner": {[]op{{0, lock("a"), granted(1)}, {s, lock("b"), granted(2)},
			{s, write(1), lockOut{}}}, true},
		"a lost answer": {[]op{{0, lock("a"), lockOut{unknown: true}}, {1, lock("b"), lockOut{}},
			{2, lockIn{call: callLook}, granted(7)}}, true},
		"a lost answer that expires early": {[]op{{0, lock("a"), lockOut{unknown: true}}, {1, lock("b"), lockOut{}},
			{2, lock("b"), granted(7)}}, false},
		"a lost answer to an unlock": {[]op{{0, lock("a"), granted(1)}, {1, unlock("a"), lockOut{unknown: true}},
			{2, lock("b"), granted(2)}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewLockHistory()
			for i, o := range c.ops {
				o.in.lock, o.in.begin = "r", int64(o.at)
				h.add(1, o.in, o.out)
				h.ops[i].Input = at(o.in)
				h.ops[i].Call = int64(o.at) + int64(i)
				if !o.out.unknown {
					h.ops[i].Return = int64(o.at) + int64(i)
				}
			}
			if err := h.Check(10*time.Second, t.TempDir()); (err == nil) != c.ok {
				t.Errorf("ok = %t: %v", c.ok, err)
			}
		})
	}
}

// at returns the request with an end at its begin.
func at(in lockIn) lockIn {
	in.end = in.begin
	return in
}
