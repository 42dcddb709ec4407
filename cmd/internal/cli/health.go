package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// healthTime is how long a node may take to answer: those who ask do so every few seconds.
const healthTime = 3 * time.Second

// healthReport is what the health command tells a program.
type healthReport struct {
	Healthy bool            `json:"healthy"` // always true: anything else is a failure of the command
	Address string          `json:"address"`
	Asked   string          `json:"asked"`            // path of the question
	Detail  json.RawMessage `json:"detail,omitempty"` // what the node said, if it said more than yes
}

// healthCommand asks a node whether it is well: for images without a shell or curl.
func (m *Main) healthCommand() *cobra.Command {
	api, out := apiFlags{main: m}, output{}
	var live, ready, placed, outbound bool
	c := &cobra.Command{
		Use:   "health [flags]",
		Short: "Ask a node whether it has started, or can serve",
		Long: "Ask a node through its HTTP API whether its start is complete (/v1.0/healthz). The exit code\n" +
			"is 0 if it is, and 1 if not, with the reason. It needs no token. It is the health check of\n" +
			"container images, which have no shell; settings come from the same environment and file.",
		Example: "  quorate health\n  quorate health --ready        # reads and writes work now\n  quorate health --placed       # and this server votes, if it is to\n  quorate health --outbound     # complete but for the application itself",
		Args:    cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		path := "/v1.0/healthz"
		switch {
		case live:
			path = "/livez"
		case ready:
			path = "/readyz"
		case placed:
			path = "/readyz/placed"
		case outbound:
			path = "/v1.0/healthz/outbound"
		}
		return api.with(c, func(client *stateClient) error {
			client.token = "" // the way is open, and a token has no business in a probe
			r, err := client.do(c.Context(), http.MethodGet, path, nil, nil, nil)
			if err != nil {
				return err
			}
			report := healthReport{Healthy: true, Address: client.base, Asked: path}
			if json.Valid(r.body) {
				report.Detail = r.body
			}
			if out.json() {
				return writeJSON(m.Stdout, report)
			}
			_, err = fmt.Fprintf(m.Stdout, "%s: %s is fine\n", client.base, path)
			return err
		})
	}
	api.bind(c)
	api.timeout = healthTime
	c.Flags().Lookup("timeout").DefValue = healthTime.String()
	out.bind(c)
	c.ValidArgsFunction = cobra.NoFileCompletions
	c.Flags().BoolVar(&live, "live", false, "ask only whether the process answers")
	c.Flags().BoolVar(&ready, "ready", false, "ask whether reads and writes work now, for every store and group")
	c.Flags().BoolVar(&placed, "placed", false, "as --ready, and a server that is to vote does: the next server of an update may stop")
	c.Flags().BoolVar(&outbound, "outbound", false, "ask whether all but the application has started")
	c.MarkFlagsMutuallyExclusive("live", "ready", "placed", "outbound")
	return c
}
