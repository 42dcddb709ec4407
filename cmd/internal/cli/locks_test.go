package cli_test

import (
	"encoding/json"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
)

func TestLocks_Output(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	c.want(0, "STORE      PREFIX  RESOURCE  OWNER     TOKEN  EXPIRY\n"+
		"lockstore  shop    printer   worker-1  1207   1m0s\n"+
		"lockstore  -       door      x         7      1.5s\n", "", "locks", "list")
	var list []schema.LockStatus
	if err := json.Unmarshal([]byte(c.run("locks", "list", "--json").stdout), &list); err != nil || len(list) != 2 ||
		list[0].Revision != "1207" {
		t.Errorf("%+v, %v", list, err)
	}
	const released = "The lock on printer, which worker-1 owned with the token 1207, is released.\n"
	c.want(0, released, "", "locks", "release", "lockstore", "printer")
	c.want(0, released, "", "locks", "release", "lockstore", "printer", "--prefix", "shop", "--token", "1207")
	c.want(1, "", "has no lock on printer", "locks", "release", "lockstore", "printer", "--prefix", "")
	c.want(1, "", "has no lock on printer", "locks", "release", "lockstore", "printer", "--token", "9")
	c.want(2, "", "--token \"x\" is not a token", "locks", "release", "lockstore", "printer", "--token", "x")
	c.want(2, "", "accepts 2 arg", "locks", "release", "lockstore")
}
