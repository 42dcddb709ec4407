package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The tests of this file play systems whose answers are right, and the same systems with a planted fault. The
// histories of a right system must pass, and each fault must be found. A seed decides the whole history.

// mutants calls play for the correct system, whose name is "", and for a system with each of the faults in names. The
// test fails if a violation is found in the correct system, or none in a system with a fault.
func mutants(t *testing.T, names []string, play func(t *testing.T, seed uint64, fault string) error) {
	t.Helper()
	const plays = 12
	for _, name := range append([]string{""}, names...) {
		found := 0
		var last error
		for seed := range uint64(plays) {
			if err := play(t, seed, name); err != nil {
				found, last = found+1, err
			}
		}
		switch {
		case name == "" && found > 0:
			t.Errorf("a violation is found where there is none: %v", last)
		case name != "" && found == 0:
			t.Errorf("%s: nothing is found in %d histories", name, plays)
		}
	}
}

func TestKeys_FindPlantedFaults(t *testing.T) {
	mutants(t, []string{"a stale read", "a lost write", "half a transaction", "a condition ignored",
		"a conflict without a cause", "a write applied twice", "a refused write applied", "an ETag reused"}, playKeys)
}

// keyStore is a store of one family of keys.
type keyStore struct {
	rnd    *rand.Rand
	fault  string
	have   family
	before family // state before the last write
	etags  [FamilySize]int
	newest int
}

// strikes reports whether a fault happens now.
func (s *keyStore) strikes(fault string) bool { return s.fault == fault && s.rnd.IntN(8) == 0 }

func (s *keyStore) apply(in KeyCall) KeyAnswer {
	if len(in.Read) > 0 {
		from := s.have
		if s.strikes("a stale read") {
			from = s.before
		}
		out := KeyAnswer{}
		for _, k := range in.Read {
			out.Values = append(out.Values, from[k])
		}
		return out
	}
	met, _ := keysStep(s.have, in, KeyAnswer{})
	if s.strikes("a conflict without a cause") {
		return KeyAnswer{Conflict: true}
	}
	if !met && !s.strikes("a condition ignored") {
		if s.strikes("a refused write applied") {
			s.have[in.Write[0].Key] = in.Write[0].Value
		}
		return KeyAnswer{Conflict: true}
	}
	if s.strikes("a lost write") {
		return KeyAnswer{}
	}
	s.before = s.have
	for i, c := range in.Write {
		if i > 0 && s.strikes("half a transaction") {
			break
		}
		s.have[c.Key] = c.Value
		s.newest++
		s.etags[c.Key] = s.newest
		if s.strikes("an ETag reused") {
			s.etags[c.Key] = 1
		}
	}
	return KeyAnswer{}
}

// keyClient is a client with at most one call in flight.
type keyClient struct {
	call    KeyCall
	begin   int64
	state   int // 0 = idle, 1 = sent, 2 = applied
	answer  KeyAnswer
	written int
}

func playKeys(t *testing.T, seed uint64, fault string) error {
	rnd := rand.New(rand.NewPCG(seed, 1))
	h, s := NewKeys(CallClock()), &keyStore{rnd: rnd, fault: fault}
	clients := make([]keyClient, 4)
	var late []KeyCall // calls without an answer that are still on their way
	for range 500 {
		if n := len(late); n > 0 && rnd.IntN(10) == 0 {
			s.apply(late[n-1])
			late = late[:n-1]
		}
		id := rnd.IntN(len(clients))
		c := &clients[id]
		switch c.state {
		case 0:
			c.begin, c.call, c.state = h.Now(), keyCall(rnd, id, c), 1
		case 1:
			if len(c.call.Write) > 0 && rnd.IntN(30) == 0 { // the answer is lost
				h.Add(id, c.begin, c.call, KeyAnswer{Unknown: true})
				late, c.state = append(late, c.call), 0
				continue
			}
			c.answer, c.state = s.apply(c.call), 2
			if len(c.call.Write) > 0 && !c.answer.Conflict && s.strikes("a write applied twice") {
				late = append(late, c.call)
			}
			for k, v := range s.have {
				h.ETag("", k, strconv.Itoa(s.etags[k]), v)
			}
		default:
			h.Add(id, c.begin, c.call, c.answer)
			c.state = 0
		}
	}
	return h.Check(time.Minute, t.TempDir())
}

// keyCall returns a random call.
func keyCall(rnd *rand.Rand, id int, c *keyClient) KeyCall {
	keys := rnd.Perm(FamilySize)[:1+rnd.IntN(2)]
	if rnd.IntN(2) == 0 {
		return KeyCall{Read: keys}
	}
	var call KeyCall
	for _, k := range keys {
		c.written++
		change := Change{Key: k, Value: fmt.Sprintf("c%d-%d", id, c.written)}
		switch rnd.IntN(5) {
		case 0:
			change.Value = ""
		case 1:
			change.Absent = true
		case 2:
			if i := slices.Index(c.call.Read, k); i >= 0 && i < len(c.answer.Values) {
				change.Expect = c.answer.Values[i]
			}
		}
		call.Write = append(call.Write, change)
	}
	return call
}

func TestLocks_FindPlantedFaults(t *testing.T) {
	mutants(t, []string{"two holders", "an early expiry", "a token granted twice", "an old token accepted",
		"an unlock of another owner's lock", "a renewal that does nothing"}, playLocks)
}

// lockService is one lock.
type lockService struct {
	rnd   *rand.Rand
	fault string
	owner string
	token uint64
	until int64
}

func (s *lockService) strikes(fault string) bool { return s.fault == fault && s.rnd.IntN(4) == 0 }

func (s *lockService) apply(now int64, in LockCall) LockAnswer {
	if s.owner != "" && (now >= s.until || now >= s.until-int64(500*time.Millisecond) && s.strikes("an early expiry")) {
		s.owner = ""
	}
	switch in.Op {
	case OpLock:
		if s.owner != "" && !s.strikes("two holders") {
			return LockAnswer{}
		}
		if !s.strikes("a token granted twice") {
			s.token++
		}
		s.owner, s.until = in.Owner, now+int64(in.Expiry)
		return LockAnswer{OK: true, Token: s.token}
	case OpUnlock:
		switch {
		case s.owner == "":
			return LockAnswer{Status: LockNotFound}
		case s.owner != in.Owner && !s.strikes("an unlock of another owner's lock"):
			return LockAnswer{Status: LockOfAnother}
		}
		s.owner = ""
		return LockAnswer{Status: Unlocked}
	case OpRenew:
		if s.owner != in.Owner {
			return LockAnswer{}
		}
		if !s.strikes("a renewal that does nothing") {
			s.until = now + int64(in.Expiry)
		}
		return LockAnswer{OK: true, Token: s.token}
	case OpLook:
		return LockAnswer{OK: s.owner != "", Token: s.token}
	default:
		return LockAnswer{OK: s.owner != "" && (s.token == in.Token || s.strikes("an old token accepted"))}
	}
}

func playLocks(t *testing.T, seed uint64, fault string) error {
	rnd := rand.New(rand.NewPCG(seed, 2))
	now := int64(1)
	h := NewLocks(func() int64 { return now })
	s := &lockService{rnd: rnd, fault: fault}
	tokens := [3]uint64{} // token of the newest grant, by client
	for range 120 {
		id := rnd.IntN(len(tokens))
		in := LockCall{Lock: "l", Op: LockOp(rnd.IntN(5)), Owner: fmt.Sprint("c", id), Token: tokens[id],
			Expiry: time.Duration(1+rnd.IntN(3)) * time.Second}
		if in.Op == OpWrite && in.Token == 0 {
			in.Op = OpLock
		}
		in.Begin = h.Now()
		now += rnd.Int64N(int64(100 * time.Millisecond))
		out := s.apply(now, in)
		if out.OK && out.Token != 0 && in.Op != OpLook {
			tokens[id] = out.Token
		}
		if (in.Op == OpLock || in.Op == OpUnlock) && rnd.IntN(20) == 0 {
			out = LockAnswer{Unknown: true} // the operation was done, but its answer is lost
		}
		now += rnd.Int64N(int64(100 * time.Millisecond))
		h.Add(id, in, out)
		now += rnd.Int64N(int64(600*time.Millisecond)) + 1
	}
	return h.Check(time.Minute, t.TempDir())
}

func TestActors_FindPlantedFaults(t *testing.T) {
	mutants(t, []string{"a lost increment", "two owners", "a call delivered twice", "overlapping turns",
		"a refused call delivered", "an answer of another call", "a last value that lacks increments"}, playActors)
}

func playActors(_ *testing.T, seed uint64, fault string) error {
	rnd := rand.New(rand.NewPCG(seed, 3))
	h := NewActors()
	var now time.Duration
	var value, unread uint64
	epoch, node := uint64(1), "n1"
	step := func() time.Duration { now += time.Duration(1+rnd.IntN(20)) * time.Millisecond; return now }
	for i := range 60 {
		if rnd.IntN(8) == 0 {
			epoch++
			node = fmt.Sprint("n", epoch%3)
		}
		strikes := i > 10 && rnd.IntN(8) == 0
		call := ActorCall{ID: fmt.Sprint("call ", i), Actor: "a", Node: node, Begin: step()}
		turn := &Turn{Actor: "a", Node: node, Life: 1, Epoch: epoch, What: call.ID, Begin: step(), Read: value,
			Result: Written}
		switch strikes = strikes && fault != ""; {
		case strikes && fault == "a lost increment":
			turn.Read--
		case strikes && fault == "two owners" && epoch > 1:
			turn.Epoch--
		case strikes && fault == "overlapping turns":
			turn.Begin -= 40 * time.Millisecond
		}
		turn.Sent = step()
		turn.End = step()
		value = turn.Read + 1
		call.Answered = value
		switch rnd.IntN(10) {
		case 0:
			turn.Result, call.Answered = Unknown, 0
			if rnd.IntN(2) == 0 {
				value--
			}
		case 1:
			turn.Result, call.Answered, value = Refused, 0, value-1
		}
		h.AddTurn(turn)
		call.End = step()
		switch {
		case strikes && fault == "a call delivered twice":
			again := *turn
			again.Begin, again.Read, again.Sent, again.End = step(), value, step(), step()
			again.Result = Written
			value++
			h.AddTurn(&again)
		case strikes && fault == "a refused call delivered":
			call.Refused = "no_host"
		case strikes && fault == "an answer of another call":
			call.Answered += 2
		case strikes && fault == "a last value that lacks increments":
			unread += 60
		}
		h.AddCall(&call)
	}
	h.Ended("a", value-min(value, unread))
	if bad := h.Check(); len(bad) > 0 {
		return fmt.Errorf("%s", strings.Join(bad, "\n"))
	}
	return nil
}

func TestDue_FindPlantedFaults(t *testing.T) {
	mutants(t, []string{"an early tick", "a tick after the deletion", "a job delivered twice",
		"a job that never fires"}, playDue)
}

func playDue(_ *testing.T, seed uint64, fault string) error {
	rnd := rand.New(rand.NewPCG(seed, 4))
	h := NewDue()
	var now time.Duration
	for i := range 40 {
		now += time.Duration(rnd.IntN(100)) * time.Millisecond
		strikes := rnd.IntN(8) == 0
		w := Work{Name: fmt.Sprint("job ", i), Sent: now, Due: time.Duration(rnd.IntN(800)) * time.Millisecond,
			Ticks: 1 + rnd.IntN(2)*9, Stored: now + time.Millisecond, Attempts: 1, Kept: rnd.IntN(2) == 0}
		if !w.Kept {
			w.Removed = w.Stored + time.Millisecond
			w.Due += 10 * time.Millisecond
		}
		h.Change(w.Name, func(to *Work) { *to = w })
		first := w.Sent + w.Due
		tick := func(n int, at time.Duration) {
			h.AddTick(Tick{Name: w.Name, ID: fmt.Sprint(i, ".", n), Begin: at})
		}
		if strikes && fault == "a tick after the deletion" && !w.Kept {
			tick(1, first)
		}
		if !w.Kept || strikes && fault == "a job that never fires" {
			continue
		}
		if strikes && fault == "an early tick" {
			first -= 10 * time.Millisecond
		}
		for n := range w.Ticks {
			tick(n, first+time.Duration(n)*200*time.Millisecond)
			if rnd.IntN(8) == 0 { // the answer was lost: the tick is delivered again, with its id
				tick(n, first+time.Duration(n)*200*time.Millisecond+time.Millisecond)
			}
		}
		if strikes && fault == "a job delivered twice" {
			tick(w.Ticks, first+time.Second)
		}
	}
	bad := h.Check()
	for _, name := range h.Missing() {
		bad = append(bad, name+" has not fired")
	}
	if len(bad) > 0 {
		return fmt.Errorf("%s", strings.Join(bad, "\n"))
	}
	return nil
}
