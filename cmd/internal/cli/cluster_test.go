package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
)

func TestMembers_Output(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	text := c.run("members").stdout
	golden(t, "testdata/members.txt", text)
	for line := range strings.Lines(text) {
		if len(line) > 81 {
			t.Errorf("%d columns, more than 80: %s", len(line)-1, line)
		}
	}
	golden(t, "testdata/members_wide.txt", c.run("members", "--wide").stdout)
	var members []schema.MemberStatus
	if err := json.Unmarshal([]byte(c.run("members", "--json").stdout), &members); err != nil || len(members) != 2 ||
		!members[0].Self || members[1].State != "failed" {
		t.Errorf("%+v, %v", members, err)
	}
}

func TestStatusAll_Output(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	golden(t, "testdata/status_all.txt", c.run("status", "--all").stdout)
	var all schema.ClusterStatus
	if err := json.Unmarshal([]byte(c.run("status", "--all", "--json").stdout), &all); err != nil ||
		len(all.Nodes) != 2 || all.Nodes[1].Status != nil || all.Groups[0].Leader != "n1" {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestNodeFlag_ReachesAnotherNode(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	for _, args := range [][]string{{"status"}, {"stores"}, {"members"}, {"apps"}, {"doctor"}} {
		own, other := c.run(args...), c.run(append(args, "--node", "n2")...)
		if own.stdout != other.stdout || own.stdout == "" || own.code != other.code {
			t.Errorf("%v: %q at this node, %q with --node, code %d", args, own.stdout, other.stdout, other.code)
		}
		c.want(1, "", "no node n9 is known in this cluster", append(args, "--node", "n9")...)
	}
	c.want(0, "n4 now leads group 0; the previous leader was n1.\n", "", "transfer-leader", "n4", "--node", "n2")
}

func TestApps_Output(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	golden(t, "testdata/apps.txt", c.run("apps").stdout)
	var apps []schema.AppInstance
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
	var r schema.TransferResult
	if err := json.Unmarshal([]byte(c.run("transfer-leader", "--json").stdout), &r); err != nil || r.Leader != "n2" ||
		r.From != "n1" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestVoters_ShowsAndSetsTheNumber(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	const servers = "\nGROUP  VOTERS               NON-VOTERS\n0      n1, n2 (failed), n3  n4\n\n" +
		"Group 0: one more failure stops writes.\n"
	c.want(0, "The cluster wants 3 voters in each group.\n"+servers, "", "voters")
	c.want(0, "The cluster now wants 5 voters in each group (3 before).\nThe cluster has 4 servers: 3 vote until one "+
		"more server joins, because an even number of voters survives no more failures.\n"+servers, "", "voters", "5")
	c.want(0, "The cluster already wants 3 voters in each group.\n"+servers, "", "voters", "3", "--node", "n2")
	c.want(1, "", "survive no more failures than 3", "voters", "4")
	c.want(2, "", `"many" is no number of voters`, "voters", "many")
	c.want(2, "", "accepts at most 1 arg", "voters", "3", "5")
}
