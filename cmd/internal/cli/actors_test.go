package cli_test

import "testing"

func TestActors_Output(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	c.want(0, "APP   HOST  TYPES    ACTORS  STATE\n"+
		"bank  a     Counter  2       active\n"+
		"bank  b     Counter  0       draining\n\n"+
		"APP   TYPE     ID     HOST  EPOCH\n"+
		"bank  Counter  alice  a     17\n"+
		"There are more actors. --limit shows them.\n\n"+
		"APP   TYPE     ID     REMINDER  SCHEDULE  NEXT                  ATTEMPTS  LAST ERROR\n"+
		"bank  Counter  alice  interest  R12/P1M   2027-01-01T00:00:00Z  2         status 500\n", "",
		"actors", "list", "--limit", "1")
	c.want(0, "Actor Counter/alice is on node b.\n", "", "actors", "move", "Counter", "alice", "--to", "b")
	c.want(1, "", "node x does not host", "actors", "move", "Counter", "alice", "--to", "x")
	c.want(1, "", "a node is missing", "actors", "move", "Counter", "alice")
	c.want(0, "3 actors of type Counter have moved.\n", "", "actors", "rebalance", "Counter")
	c.want(0, "3 actors of type Busy have moved.\nNot moved, because a call takes more than 5 s: 2. Run the command "+
		"again later.\n", "", "actors", "rebalance", "Busy")
	c.want(0, "{\n  \"moved\": 3,\n  \"busy\": 2\n}\n", "", "actors", "rebalance", "Busy", "-o", "json")
}
