package clustercmd

import "testing"

func TestTooFewServers_SaysWhoVotesUntilWhen(t *testing.T) {
	t.Parallel()
	const even = ", because an even number of voters survives no more failures."
	for _, c := range []struct {
		wanted, servers int
		want            string
	}{
		{3, 3, ""}, {3, 5, ""}, {3, 0, ""},
		{3, 1, "The cluster has 1 server: 1 votes until one more server joins."},
		{3, 2, "The cluster has 2 servers: 2 vote until one more server joins."},
		{5, 3, "The cluster has 3 servers: 3 vote until 2 more servers join."},
		{5, 4, "The cluster has 4 servers: 3 vote until one more server joins" + even},
		{7, 4, "The cluster has 4 servers: 3 vote until one more server joins" + even},
	} {
		if got := tooFewServers(c.wanted, c.servers); got != c.want {
			t.Errorf("%d of %d: %q", c.servers, c.wanted, got)
		}
	}
}
