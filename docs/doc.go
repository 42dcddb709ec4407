// Package docs tests the documentation of the whole tree: links have targets, names exist, and the commands on the
// pages work. The commands run in a sandbox. An HTML comment on a page can say how to treat a block, for example that
// its commands are not run. The package owns the form of these HTML comments, and the sandbox.
//
// The package must read names from pages or from the output of commands where possible, and not import the code that
// defines them. For example, it reads docs/cli.md, docs/configuration.md, docs/metrics.md and api/http/openapi.json.
// Other tests compare these files with the code.
package docs
