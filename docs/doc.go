// Package docs compares the documentation of the whole tree with the product: links have targets, names exist, and
// the commands on the pages work.
//
// It must not import what it can read from a page or a command. docs/cli.md, docs/configuration.md, docs/metrics.md and
// api/http/openapi.json are compared with the code by other tests, so this package reads names from them. It
// owns the marks of blocks on the pages, and the sandbox in which their commands run.
package docs
