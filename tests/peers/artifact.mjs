// One call of GitHub's own artifact client; the answer is one line of JSON after the mark.
//
// usage: node artifact.mjs upload NAME ROOT LEVEL FILE... | upload-raw ROOT FILE | list
//                          | download ID FOLDER DIGEST | delete NAME
//                          | list-other TOKEN RUN OWNER REPO
//                          | download-other TOKEN ID OWNER REPO RUN FOLDER DIGEST
import { DefaultArtifactClient } from '@actions/artifact'

const client = new DefaultArtifactClient()
const findBy = (token, run, owner, name) => ({
  token,
  workflowRunId: Number(run),
  repositoryOwner: owner,
  repositoryName: name
})
const calls = {
  upload: (name, root, level, ...files) =>
    client.uploadArtifact(name, files, root, { compressionLevel: Number(level) }),
  'upload-raw': (root, file) =>
    client.uploadArtifact('ignored', [file], root, { skipArchive: true }),
  list: () => client.listArtifacts(),
  download: (id, path, expectedHash) =>
    client.downloadArtifact(Number(id), { path, expectedHash }),
  delete: name => client.deleteArtifact(name),
  'list-other': (...other) => client.listArtifacts({ findBy: findBy(...other) }),
  'download-other': (token, id, owner, name, run, path, expectedHash) =>
    client.downloadArtifact(Number(id), {
      path,
      expectedHash,
      findBy: findBy(token, run, owner, name)
    })
}
const [call, ...args] = process.argv.slice(2)
const answer = await calls[call](...args)
console.log(`answer: ${JSON.stringify(answer)}`)
