package history

import (
	"testing"
	"time"
)

// TestLocks_RefuseWrongHistories checks that exactly the histories with ok are accepted as those of a lock service.
func TestLocks_RefuseWrongHistories(t *testing.T) {
	const s = time.Second
	lock := func(owner string) LockCall { return LockCall{Op: OpLock, Owner: owner, Expiry: s} }
	unlock := func(owner string) LockCall { return LockCall{Op: OpUnlock, Owner: owner} }
	renew := func(owner string) LockCall { return LockCall{Op: OpRenew, Owner: owner, Expiry: 3 * s} }
	write := func(token uint64) LockCall { return LockCall{Op: OpWrite, Token: token} }
	granted := func(token uint64) LockAnswer { return LockAnswer{OK: true, Token: token} }
	type op struct {
		at  time.Duration
		in  LockCall
		out LockAnswer
	}
	for name, c := range map[string]struct {
		ops []op
		ok  bool
	}{
		"one after the other": {[]op{{0, lock("a"), granted(1)}, {1, unlock("a"), LockAnswer{}},
			{2, lock("b"), granted(2)}}, true},
		"two owners":        {[]op{{0, lock("a"), granted(1)}, {1, lock("b"), granted(2)}}, false},
		"after its expiry":  {[]op{{0, lock("a"), granted(1)}, {s, lock("b"), granted(2)}}, true},
		"before its expiry": {[]op{{0, lock("a"), granted(1)}, {s - 1, lock("b"), granted(2)}}, false},
		"after a renewal": {[]op{{0, lock("a"), granted(1)}, {1, renew("a"), granted(1)},
			{s, lock("b"), granted(2)}}, false},
		"kept too long":      {[]op{{0, lock("a"), granted(1)}, {9 * s, lock("b"), LockAnswer{}}}, true},
		"refused while free": {[]op{{0, lock("a"), LockAnswer{}}}, false},
		"a repeated token": {[]op{{0, lock("a"), granted(1)}, {1, unlock("a"), LockAnswer{}},
			{2, lock("b"), granted(1)}}, false},
		"another token after a renewal": {[]op{{0, lock("a"), granted(1)}, {1, renew("a"), granted(2)}}, false},
		"a renewal of a lost lock": {[]op{{0, lock("a"), granted(1)}, {s, lock("b"), granted(2)},
			{s + 1, renew("a"), granted(1)}}, false},
		"an unlock of another owner": {[]op{{0, lock("a"), granted(1)}, {1, unlock("b"), LockAnswer{}}}, false},
		"a write of the owner":       {[]op{{0, lock("a"), granted(1)}, {1, write(1), LockAnswer{OK: true}}}, true},
		"a write of the owner that is refused": {[]op{{0, lock("a"), granted(1)},
			{1, write(1), LockAnswer{}}}, false},
		"a write of a former owner": {[]op{{0, lock("a"), granted(1)}, {s, lock("b"), granted(2)},
			{s + 1, write(1), LockAnswer{OK: true}}}, false},
		"a refused write of a former owner": {[]op{{0, lock("a"), granted(1)}, {s, lock("b"), granted(2)},
			{s + 1, write(1), LockAnswer{}}}, true},
		"a lost answer": {[]op{{0, lock("a"), LockAnswer{Unknown: true}}, {1, lock("b"), LockAnswer{}},
			{2, LockCall{Op: OpLook}, granted(7)}}, true},
		"a lost answer that expires early": {[]op{{0, lock("a"), LockAnswer{Unknown: true}},
			{1, lock("b"), LockAnswer{}}, {2, lock("b"), granted(7)}}, false},
		"a lost answer to an unlock": {[]op{{0, lock("a"), granted(1)}, {1, unlock("a"), LockAnswer{Unknown: true}},
			{2, lock("b"), granted(2)}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var now int64
			h := NewLocks(func() int64 { return now })
			for _, o := range c.ops {
				now = int64(o.at)
				o.in.Lock, o.in.Begin = "r", h.Now()
				h.Add(1, o.in, o.out)
			}
			if err := h.Check(10*time.Second, t.TempDir()); (err == nil) != c.ok {
				t.Errorf("ok = %t: %v", c.ok, err)
			}
		})
	}
}
