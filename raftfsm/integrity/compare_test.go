package integrity

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/kv"
)

var errAway = errors.New("away")

// hanging is a group of three servers, which queries the servers "silent" and "behind". The server "silent" does not
// answer, and "behind" has not applied the entry of any mark.
type hanging struct{ Raft }

func (hanging) Servers() []raft.Server {
	return []raft.Server{{ID: "self"}, {ID: "silent"}, {ID: "behind"}}
}

func (hanging) Compare(ctx context.Context, server raft.Server, _ uint64) (Report, error) {
	if server.ID == "behind" {
		return Report{}, nil
	}
	<-ctx.Done()
	return Report{}, ctx.Err()
}

func (hanging) AskState(context.Context, raft.Server, StateRequest) error { return errAway }

func TestAskUntilAnswered_IsBoundedIfAServerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const round = 2 * time.Second
		w := New(Config{Self: "self", ReadRound: round, Closing: t.Context(), Raft: hanging{}, Replicas: hanging{}})
		begun := time.Now()
		answers := w.askUntilAnswered(t.Context(), 1)
		if took := time.Since(begun); took > askTime+round {
			t.Errorf("the queries took %s", took)
		}
		if len(answers) != 2 || answers[0].Err == nil || answers[1].Err != nil {
			t.Errorf("got %+v", answers)
		}
	})
}

func TestCompared_MajorityOfVotersDecides(t *testing.T) {
	a, b, c := kv.Digest{1}, kv.Digest{2}, kv.Digest{3}
	says := func(d kv.Digest) Answer { return Answer{Report: Report{Marked: true, Digest: d}} }
	mute, behind := Answer{Err: errAway}, Answer{}
	nonVoter := func(x Answer) Answer { x.Server.Suffrage = raft.Nonvoter; return x }
	for name, x := range map[string]struct {
		voter   bool
		answers []Answer
		want    finding
		other   kv.Digest
	}{
		"all agree":                            {true, []Answer{says(a), says(a)}, agrees, a},
		"two of three agree":                   {true, []Answer{says(a), says(b)}, agrees, a},
		"two of three agree, one is away":      {true, []Answer{says(a), mute}, agrees, a},
		"two of three agree on something else": {true, []Answer{says(b), says(b)}, outvoted, b},
		"three states":                         {true, []Answer{says(b), says(c)}, split, kv.Digest{}},
		"one differs, one is away":             {true, []Answer{says(b), mute}, split, b},
		"one differs, one is behind":           {true, []Answer{says(b), behind}, split, b},
		"two servers that differ":              {true, []Answer{says(b)}, split, b},
		"no server answers":                    {true, []Answer{mute, behind}, undecided, kv.Digest{}},
		"non-voters do not count":              {true, []Answer{nonVoter(says(b)), nonVoter(says(b))}, agrees, a},
		"non-voters make no majority": {true, []Answer{says(b), mute, nonVoter(says(b)), nonVoter(says(b))},
			split, b},
		"a non-voter compares":                    {false, []Answer{says(b), says(b), mute}, outvoted, b},
		"a non-voter compares, one answers":       {false, []Answer{says(b), mute, mute}, split, b},
		"a non-voter and a single voter":          {false, []Answer{says(b)}, outvoted, b},
		"four voters in two halves":               {true, []Answer{says(a), says(b), says(b)}, split, b},
		"five voters, three of them of one state": {true, []Answer{says(a), says(b), says(b), says(b)}, outvoted, b},
	} {
		t.Run(name, func(t *testing.T) {
			f, other := compared(a, x.voter, x.answers)
			if name == "three states" && (other == b || other == c) {
				other = kv.Digest{} // either digest
			}
			if f != x.want || other != x.other {
				t.Errorf("got %d %v, want %d %v", f, other, x.want, x.other)
			}
		})
	}
}
