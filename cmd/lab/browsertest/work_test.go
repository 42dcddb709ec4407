package browsertest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

func TestConsole_JobsAndActors(t *testing.T) {
	nodes, dir := startCluster(t), artefacts(t)
	work(t, nodes)
	b := openBrowser(t, nodes[2])
	wait(t, "the failed job is shown", func() bool {
		b.open("/jobs")
		text := b.text("#jobs")
		return strings.Contains(text, "reminder-mail") && strings.Contains(text, "500")
	})
	text := b.text("#jobs")
	for _, want := range []string{"2 jobs", "nightly", "app-a", "in 23 h 59 min"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not show %q:\n%s", want, text)
		}
	}
	b.shoot(dir, "jobs")
	b.open("/jobs?name=night")
	if text := b.text("#jobs"); strings.Contains(text, "reminder-mail") || !strings.Contains(text, "nightly") {
		t.Errorf("the prefix is ignored:\n%s", text)
	}
	b.open("/actors")
	text = b.text("main")
	for _, want := range []string{"Actors of app-b", "Cart", "basket-1", "basket-2", "takes actors", "2 actors",
		"1 reminder", "wake-up", "in 59 min"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not show %q:\n%s", want, text)
		}
	}
	b.shoot(dir, "actors")
	b.check()
}

func TestConsole_LocksShowWhatIsLeftOfTheLease(t *testing.T) {
	nodes := startCluster(t)
	code := nodes[1].post(t, "/v1.0-alpha1/lock/lockstore",
		`{"resourceId":"door","lockOwner":"me","expiryInSeconds":1000}`)
	if code != http.StatusOK {
		t.Fatalf("lock: status %d", code)
	}
	b := openBrowser(t, nodes[2])
	var left string
	wait(t, "the lock is shown", func() bool {
		b.open("/locks")
		const cell = `document.querySelector("#locks tbody tr td:nth-child(6)")?.textContent || ""`
		b.run(chromedp.Evaluate(cell, &left))
		return left != ""
	})
	if left != "16 min" && left != "15 min" {
		t.Errorf("%q is left of a lease of 1000 seconds", left)
	}
	b.shoot(artefacts(t), "locks")
	b.check()
}

// work schedules a job that fails and one that is not due yet, and calls two actors.
func work(t *testing.T, nodes []*node) {
	t.Helper()
	for name, job := range map[string]string{
		"reminder-mail": `{"dueTime":"0s","failurePolicy":{"constant":{"interval":"1s","maxRetries":1000}}}`,
		"nightly":       `{"schedule":"@every 24h"}`} {
		if code := nodes[0].post(t, "/v1.0-alpha1/jobs/"+name, job); code >= http.StatusMultipleChoices {
			t.Fatalf("job %s: status %d", name, code)
		}
	}
	for _, id := range []string{"basket-1", "basket-2"} {
		wait(t, "the actor answers", func() bool {
			return nodes[0].post(t, "/v1.0/actors/Cart/"+id+"/method/add", "{}") == http.StatusOK
		})
	}
	code := nodes[1].post(t, "/v1.0/actors/Cart/basket-1/reminders/wake-up", `{"dueTime":"1h","period":"24h"}`)
	if code >= http.StatusMultipleChoices {
		t.Fatalf("reminder: status %d", code)
	}
}
