package cli_test

import (
	"strings"
	"testing"
)

func TestWorkflows_Output(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	const head = "APP   INSTANCE  WORKFLOW  STATUS   CREATED               UPDATED               PARENT\n"
	const row = "shop  order-7   order     RUNNING  2023-11-14T22:13:20Z  2023-11-14T22:13:22Z  -\n"
	c.want(0, head+row, "", "workflows", "list", "--status", "running,failed", "--older-than", "24h")
	c.want(0, head+row+"There are more instances. Add --after TOKEN to show them.\n", "", "workflows", "list",
		"--limit", "1")
	if r := c.run("workflows", "list", "--name", "none"); r.code != 0 ||
		r.stderr != "Note: no instance is of a workflow with the name none\n" {
		t.Errorf("a name that no instance has: %+v", r)
	}
	c.want(2, "", "--limit 0 is no number from 1 to 1000", "workflows", "list", "--limit", "0")
	c.want(2, "", "not negative", "workflows", "list", "--older-than", "-1h")

	const detail = "Instance  order-7 of application shop\nWorkflow  order\nStatus    RUNNING\n" +
		"Created   2023-11-14T22:13:20Z\nUpdated   2023-11-14T22:13:22Z\n"
	const steps = "Turns     2\nWorkers   none is connected, so the instance waits\n\n" +
		"EVENT  BEGAN  TOOK  STEP      NAME  ATTEMPT  OUTCOME  DETAILS\n" +
		"0      +1.5s  1s    activity  pay   1        failed   E: no\n" +
		"1      +1.5s  -     wait      go    -        goes on  due 2023-11-14T23:13:21Z\n"
	c.want(0, detail+steps, "", "workflows", "show", "shop", "order-7")
	c.want(0, detail+"Input     secret\n"+steps, "", "workflows", "show", "shop", "order-7", "--payloads")
	c.want(1, "", "has no workflow instance x", "workflows", "show", "shop", "x")
	if text := c.run("workflows", "show", "shop", "order-7", "--json").stdout; strings.Contains(text, "secret") ||
		!strings.Contains(text, `"status": "RUNNING"`) {
		t.Errorf("as JSON: %s", text)
	}

	const events = "#  TIME                      EVENT          ID  OF  NAME  DETAILS"
	const event = "  2023-11-14T22:13:20.000Z  TaskScheduled  "
	c.want(0, events+"\n0"+event+"0   -   pay   -\n1"+event+"1   -   pay   -\n"+
		"There are more events. Add --first 2 to show them.\n", "",
		"workflows", "history", "shop", "order-7", "--limit", "2")
	c.want(0, events+"  PAYLOAD\n2"+event+"2   -   pay   -        secret\n", "",
		"workflows", "history", "shop", "order-7", "--first", "2", "--payloads")
	c.want(2, "", "--limit a number", "workflows", "history", "shop", "order-7", "--limit", "0")
	c.want(2, "", "accepts 2 arg", "workflows", "show", "shop")
}

func TestWorkflows_Changes(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	start := []string{"workflows", "start", "shop", "order", "--id", "a"}
	if r := c.run(start...); r.code != 0 || r.stdout != "Workflow instance a of shop is PENDING.\n" ||
		r.stderr != "Note: no worker is connected\n" {
		t.Errorf("start: %+v", r)
	}
	c.want(1, "", "the data is not JSON", append(start, "--input", "x")...)
	c.want(2, "", "--start-time \"soon\" is not in the form of RFC 3339", append(start, "--start-time", "soon")...)
	c.stdin = "7"
	if r := c.run(append(start, "--input", "-")...); r.code != 0 {
		t.Errorf("with an input of the standard input: %+v", r)
	}
	c.stdin = ""
	const running = "Workflow instance a of shop is RUNNING.\n"
	c.want(0, running, "", "workflows", "raise", "shop", "a", "approve", "--data", "1")
	c.want(1, "", "does not wait for the event aprove", "workflows", "raise", "shop", "a", "aprove")
	c.want(0, running, "", "workflows", "raise", "shop", "a", "aprove", "--early")
	c.want(0, "Workflow instance a of shop is SUSPENDED.\n", "", "workflows", "pause", "shop", "a", "--reason", "x")
	c.want(0, running, "", "workflows", "resume", "shop", "a")
	c.want(0, "Workflow instance b of shop is RUNNING.\n", "", "workflows", "rerun", "shop", "a", "3", "--id", "b")
	c.want(2, "", "is not the id of an event", "workflows", "rerun", "shop", "a", "--", "-1")
	c.want(2, "", "is not the id of an event", "workflows", "rerun", "shop", "a", "pay")

	terminate := []string{"workflows", "terminate", "shop", "a"}
	c.want(2, "", "add --yes", terminate...)
	c.want(0, "Workflow instance a of shop is TERMINATED.\n", "", append(terminate, "--yes")...)
	purge := []string{"workflows", "purge", "shop"}
	c.want(2, "", "nothing is selected", append(purge, "--yes")...)
	c.want(2, "", "--force needs the id of an instance", append(purge, "--all", "--force")...)
	c.want(2, "", "not both", append(purge, "a", "--all")...)
	// A script with an unset variable must not purge more than it names.
	c.want(2, "", "the id of the instance is empty", append(purge, "", "--yes")...)
	c.want(2, "", "--name is empty", append(purge, "--name", "", "--status", "completed", "--yes")...)
	c.want(2, "", "--prefix is empty", append(purge, "--prefix=", "--all", "--yes")...)
	c.want(2, "", "--status is empty", append(purge, "--status=", "--older-than", "720h", "--yes")...)
	c.stdin = "other\n"
	c.want(1, "", "not confirmed; nothing was changed", append(purge, "a")...)
	c.stdin = "a\n"
	if r := c.run(append(purge, "a")...); r.code != 0 || r.stdout != "1 instance removed.\n" {
		t.Errorf("purge of one: %+v", r)
	}
	c.stdin = ""
	c.want(0, "3 instances removed.\n", "", append(purge, "--status", "completed", "--older-than", "720h", "--yes")...)
}
