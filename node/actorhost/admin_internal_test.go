package actorhost

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
	directory "github.com/quorate/quorate/raftfsm/actors"
)

func TestMoves_LevelTheHostsWithFewMoves(t *testing.T) {
	for counts, want := range map[[4]int]string{
		{9, 0, 0, 0}: "3 2 2 2, 6 moved",
		{3, 3, 3, 3}: "3 3 3 3, 0 moved",
		{2, 3, 2, 3}: "2 3 2 3, 0 moved",
		{0, 0, 0, 7}: "2 2 1 2, 5 moved",
		{5, 0, 4, 0}: "3 2 2 2, 4 moved",
		{0, 0, 0, 0}: "0 0 0 0, 0 moved",
	} {
		hosts, placed := make([]directory.HostLoad, 4), map[string][]api.Actor{}
		for i, n := range counts {
			hosts[i].Host = directory.Host{ID: fmt.Sprint(i)}
			for k := range n {
				placed[fmt.Sprint(i)] = append(placed[fmt.Sprint(i)], api.Actor{ID: fmt.Sprint(i, k)})
			}
		}
		moved := 0
		for _, m := range moves(hosts, placed) {
			moved += len(m.actors)
		}
		var got []string
		for i := range hosts {
			got = append(got, fmt.Sprint(len(placed[fmt.Sprint(i)])))
		}
		if text := fmt.Sprintf("%s, %d moved", strings.Join(got, " "), moved); text != want {
			t.Errorf("%v becomes %s, want %s", counts, text, want)
		}
	}
	if got := moves(nil, nil); got != nil {
		t.Errorf("%v without hosts", got)
	}
}
