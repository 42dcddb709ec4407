package cli_test

import "testing"

func TestJobs_Output(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	c.want(0, "APP   JOB      SCHEDULE  NEXT                  TICKS  ATTEMPTS  WAITS FOR  LAST ERROR\n"+
		"shop  nightly  @daily    2023-11-14T22:13:20Z  3      0         -          -\n"+
		"shop  once     -         2023-11-14T22:15:00Z  0      2         -          answered 500\n", "",
		"jobs", "list")
	c.want(0, "APP   JOB      SCHEDULE  NEXT                  TICKS  ATTEMPTS  WAITS FOR  LAST ERROR\n"+
		"shop  nightly  @daily    2023-11-14T22:13:20Z  3      0         -          -\n", "",
		"jobs", "list", "--prefix", "ni")
	c.want(0, "[\n  {\n    \"app\": \"shop\",\n    \"namespace\": \"\",\n    \"name\": \"nightly\",\n"+
		"    \"schedule\": \"@daily\",\n    \"next\": \"2023-11-14T22:13:20Z\",\n    \"ticks\": 3,\n"+
		"    \"attempts\": 0\n  }\n]\n", "", "jobs", "get", "shop", "nightly")
	// Only JSON has the data of the jobs.
	c.want(0, "APP  JOB  SCHEDULE  NEXT  TICKS  ATTEMPTS  WAITS FOR  LAST ERROR\n", "", "jobs", "list", "--app", "full")
	c.want(1, "", "the jobs need too many bytes", "jobs", "list", "--app", "full", "--json")
	c.want(1, "", "has no job x", "jobs", "get", "shop", "x")
	c.want(0, "Job once of shop is due now.\n", "", "jobs", "run", "shop", "once")
	c.want(0, "Job once of shop is deleted.\n", "", "jobs", "delete", "shop", "once")
	c.want(1, "", "has no job x", "jobs", "delete", "shop", "x")
	c.want(2, "", "accepts 2 arg", "jobs", "run", "shop")
}
