package cli_test

import (
	"encoding/json"
	"testing"

	"github.com/quorate/quorate/api"
)

func TestMembers_Output(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	golden(t, "testdata/members.txt", c.run("members").stdout)
	var members []api.MemberStatus
	if err := json.Unmarshal([]byte(c.run("members", "--json").stdout), &members); err != nil || len(members) != 2 ||
		!members[0].Self || members[1].State != "failed" {
		t.Errorf("%+v, %v", members, err)
	}
}

func TestApps_Output(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	golden(t, "testdata/apps.txt", c.run("apps").stdout)
	var apps []api.AppInstance
	if err := json.Unmarshal([]byte(c.run("apps", "--json").stdout), &apps); err != nil || len(apps) != 4 ||
		!apps[0].Self || apps[2].Namespace != "prod" {
		t.Errorf("%+v, %v", apps, err)
	}
}

func TestTransferLeader_ReportsTheNewLeader(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	c.want(0, "n2 now leads group 0; the previous leader was n1.\n", "", "transfer-leader")
	c.want(0, "n4 now leads group 0; the previous leader was n1.\n", "", "transfer-leader", "n4")
	c.want(0, "n1 already leads group 0.\n", "", "transfer-leader", "n1")
	c.want(0, "n1 gave up the leadership of group 0; its new leader is not known yet (see quorate status).\n", "",
		"transfer-leader", "n3", "--group", "0")
	c.want(1, "", "group 1 is led by n2, not by this node (run the command on n2)", "transfer-leader", "--group", "1")
	c.want(2, "", "accepts at most 1 arg", "transfer-leader", "n1", "n2")
	c.want(2, "", "--group", "transfer-leader", "--group", "-1")
	var r api.TransferResult
	if err := json.Unmarshal([]byte(c.run("transfer-leader", "--json").stdout), &r); err != nil || r.Leader != "n2" ||
		r.From != "n1" {
		t.Errorf("%+v, %v", r, err)
	}
}
