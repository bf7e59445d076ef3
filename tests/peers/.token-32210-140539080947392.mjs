
import { getIDToken } from "@actions/core";
await getIDToken("sts.amazonaws.com");
